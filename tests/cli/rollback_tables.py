"""Builds RoutingTables as the API server sends them."""

from typing import Any

Wire = dict[str, Any]


def digest(version: str) -> str:
    """A digest one can recognise."""
    return f"sha256:{version}"


def target(version: str, weight: int, **fields: Any) -> Wire:
    """One target with what gateways need of its version."""
    return {"version": version, "weight": weight, "digest": digest(version), "port": 8000, **fields}


def split(**weights: int) -> list[Wire]:
    """``split(v1=9000, v2=1000)``."""
    return [target(version, weight) for version, weight in weights.items()]


def rejection(version: str) -> Wire:
    """A version that somebody rolled back from."""
    return {"version": version, "digest": digest(version), "reason": "slow", "at": "2026-01-01T00:00:00Z"}


def warm(version: str, weight: int = 10_000, until: str = "2026-01-01T00:10:00Z") -> Wire:
    """A rollback target whose replicas stay."""
    return {**target(version, weight), "until": until}


def table(targets: list[Wire], **fields: Any) -> Wire:
    """The RoutingTable default/chat."""
    return {
        "apiVersion": "tidewheel.dev/v1alpha1",
        "kind": "RoutingTable",
        "metadata": {"namespace": "default", "name": "chat", "uid": "u1", "generation": 3, "resourceVersion": "41"},
        "spec": {"model": "chat", "targets": targets, "salt": "s", "ruleUid": "r1", "ruleGeneration": 7, **fields},
    }
