"""From ``spec.rollout`` of a RoutingRule, as it is on the wire, to what the planner and the judge are told.

A field that is not known here is refused, not ignored: a misspelt limit would never be held to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from tidewheel.crds.rolloutchoices import Direction, Metric, Mode, OnBlind, OnBreach, OnCapacity, Patience
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.judge.settings import CustomMetric, JudgeSettings
from tidewheel.rollout.machine.policy import RolloutPolicy, Step
from tidewheel.rollout.planning.windows import ChangeWindow, change_window
from tidewheel.rollout.quality.scoring import QualitySettings

_ELSEWHERE: Final = frozenset({"keepPreviousSeconds"})
"""Obeyed by the RoutingTable, not by the planner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfiguration:
    """All of ``spec.rollout``."""

    policy: RolloutPolicy
    judge: JudgeSettings
    on_capacity: OnCapacity


def configuration(rollout: Mapping[str, Any]) -> RolloutConfiguration:
    """Raises SettingsError, which names the field and the way out."""
    given = {name: value for name, value in rollout.items() if name not in _ELSEWHERE}
    judge = _judge(given.pop("judge", {}))
    on_capacity = _choice("onCapacity", OnCapacity, given.pop("onCapacity", OnCapacity.SURGE))
    policy = RolloutPolicy(**_arguments(RolloutPolicy, given, _POLICY_READERS, where="rollout"))
    return RolloutConfiguration(policy=policy, judge=judge, on_capacity=on_capacity)


def _judge(given: Mapping[str, Any]) -> JudgeSettings:
    return JudgeSettings(**_arguments(JudgeSettings, given, _JUDGE_READERS, where="rollout.judge"))


def _quality(given: Mapping[str, Any]) -> QualitySettings:
    readers = {"on_breach": lambda text: _choice("quality.onBreach", OnBreach, text)}
    return QualitySettings(**_arguments(QualitySettings, given, readers, where="rollout.quality"))


def _steps(value: Any) -> tuple[Step, ...]:
    return tuple(_step(number, step) for number, step in enumerate(value))


def _step(number: int, step: Mapping[str, Any]) -> Step:
    where = f"rollout.steps[{number}]"
    if ("percent" in step) == ("basisPoints" in step):
        raise SettingsError(f"{where}: say either percent or basisPoints")
    if unknown := step.keys() - {"percent", "basisPoints", "bakeSeconds"}:
        raise SettingsError(f"{where}: {', '.join(sorted(unknown))} is not known; a step has percent and bakeSeconds")
    progress = step["basisPoints"] if "basisPoints" in step else step["percent"] * 100
    return Step(int(progress), step.get("bakeSeconds"))


def _windows(value: Any) -> tuple[ChangeWindow, ...]:
    found = []
    for number, window in enumerate(value):
        if unknown := window.keys() - {"start", "end", "timeZone", "days"}:
            raise SettingsError(f"rollout.changeWindows[{number}]: {', '.join(sorted(unknown))} is not known")
        found.append(
            change_window(
                start=window["start"],
                end=window["end"],
                time_zone=window.get("timeZone", "UTC"),
                days=window.get("days", ()),
            )
        )
    return tuple(found)


def _custom(value: Any) -> tuple[CustomMetric, ...]:
    readers = {"direction": lambda text: _choice("direction", Direction, text)}
    return tuple(CustomMetric(**_arguments(CustomMetric, metric, readers, where="judge.custom")) for metric in value)


def _choice(name: str, kind: Any, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        raise SettingsError(f"{name}: {value!r} is none of {', '.join(kind)}") from error


def _metrics(value: Any) -> tuple[Metric, ...]:
    return tuple(_choice("judge.metrics", Metric, name) for name in value)


Reader = Callable[[Any], Any]
_POLICY_READERS: Final[dict[str, Reader]] = {
    "steps": _steps,
    "on_thin": lambda value: _choice("onThin", Patience, value),
    "on_blind": lambda value: _choice("onBlind", OnBlind, value),
    "on_base_down": lambda value: _choice("onBaseDown", Patience, value),
    "change_windows": _windows,
    "quality": _quality,
}
_JUDGE_READERS: Final[dict[str, Reader]] = {
    "mode": lambda value: _choice("judge.mode", Mode, value),
    "metrics": _metrics,
    "dry_run": lambda value: frozenset(_metrics(value)),
    "custom": _custom,
    "load_ratio": tuple,
}


def _arguments(kind: Any, given: Mapping[str, Any], readers: Mapping[str, Reader], *, where: str) -> dict[str, Any]:
    known = {_camel(part.name): part.name for part in fields(kind)}
    if unknown := given.keys() - known.keys():
        raise SettingsError(f"{where}: {', '.join(sorted(unknown))} is not known; there are {', '.join(known)}")
    read: dict[str, Any] = {}
    for name, value in given.items():
        reader = readers.get(known[name])
        read[known[name]] = reader(value) if reader is not None else value
    return read


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
