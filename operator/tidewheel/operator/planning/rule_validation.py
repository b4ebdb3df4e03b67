"""What is wrong with a rule: what the API server cannot check because it crosses objects, and the rest once more."""

from tidewheel.crds.routingrule import RoutingRuleSpec
from tidewheel.operator.planning.records import Picture, RuleRecord
from tidewheel.operator.planning.split import Shares
from tidewheel.operator.planning.verdicts import Finding


def refuse_rule(rule: RuleRecord, picture: Picture, *, current: Shares) -> Finding | None:
    """Why the rule cannot be obeyed, or None. ``current`` is the split in force."""
    if rule.spec is None:
        return Finding("InvalidSpec", f"RoutingRule {rule.meta.name}: {rule.invalid}")
    if rule.meta.name != rule.spec.model:
        return Finding("InvalidSpec", f"metadata.name must equal spec.model ({rule.spec.model})")
    names = [target.version for target in rule.spec.traffic]
    total = sum(target.percent for target in rule.spec.traffic)
    if total != 100 or len(set(names)) != len(names):
        return Finding("InvalidTraffic", f"spec.traffic must name each version once and sum to 100; it sums to {total}")
    found = (_refuse_target(index, rule.spec, picture, current) for index in range(len(names)))
    return next((finding for finding in found if finding is not None), None)


def _refuse_target(index: int, spec: RoutingRuleSpec, picture: Picture, current: Shares) -> Finding | None:
    target = spec.traffic[index]
    where = f"spec.traffic[{index}] names version {target.version}"
    name = f"{spec.model}-{target.version}"
    version = picture.versions.get(target.version)
    if target.percent == 0:
        return None
    if version is None:
        message = f"{where}, but there is no ModelVersion {name} in namespace {picture.key.namespace}; "
        return Finding("VersionNotFound", message + "create it or correct the rule")
    if version.spec is None:
        return Finding("VersionInvalid", f"{where}, but ModelVersion {name} cannot be read: {version.invalid}")
    if version.meta.deleting and target.percent * 100 > current.get(target.version, 0):
        return Finding("VersionDeleted", f"{where}, but ModelVersion {name} is being deleted; create another one")
    return None
