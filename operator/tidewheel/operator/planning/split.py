"""Splits of traffic: version -> share in basis points, those without a share left out."""

from collections.abc import Mapping

from tidewheel.crds.names import TOTAL_BASIS_POINTS, BasisPoints
from tidewheel.crds.routingrule import RoutingRuleSpec
from tidewheel.operator.planning.records import TableRecord

Shares = Mapping[str, BasisPoints]


def shares(table: TableRecord | None) -> dict[str, BasisPoints]:
    """The split in force, versions without weight left out."""
    if table is None or table.spec is None:
        return {}
    return {target.version: BasisPoints(target.weight) for target in table.spec.targets if target.weight}


def wanted_shares(rule: RoutingRuleSpec) -> dict[str, BasisPoints]:
    """The split that a rule asks for."""
    return {
        target.version: BasisPoints(target.percent * TOTAL_BASIS_POINTS // 100)
        for target in rule.traffic
        if target.percent
    }


def split_in_words(split: Mapping[str, int]) -> str:
    """``v42:90% v43:10%``."""
    return " ".join(f"{version}:{weight / 100:g}%" for version, weight in split.items()) or "none"
