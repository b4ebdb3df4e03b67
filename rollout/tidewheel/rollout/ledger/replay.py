"""Judge again what was judged, with the same settings (it must come out the same) or with others."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tidewheel.crds.rolloutchoices import Mode
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.judge.verdicts import StepJudge
from tidewheel.rollout.ledger.records import Ledger, Look, StepRecord

Change = Callable[[JudgeSettings], JudgeSettings]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedLook:
    """A look then and now. ``verdict`` None: it was blind, and stays so whatever the settings."""

    rollout_id: str
    step: int
    canary_share: float
    look: Look
    verdict: Verdict | None

    @property
    def kind(self) -> VerdictKind:
        """What would be said."""
        return self.verdict.kind if self.verdict is not None else self.look.kind

    @property
    def differs(self) -> bool:
        """Another verdict, or the same for another reason."""
        return self.verdict is not None and (self.kind, self.verdict.reason) != (self.look.kind, self.look.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Every look of a ledger again. ``partial``: steps whose first looks the ring has dropped."""

    looks: tuple[ReplayedLook, ...]
    partial: tuple[tuple[str, int], ...] = ()

    @property
    def first_breach(self) -> ReplayedLook | None:
        """When it would have been rolled back."""
        return next((look for look in self.looks if look.kind is VerdictKind.BREACH), None)


def replay(ledger: Ledger, *, change: Change = lambda settings: settings) -> Replay:
    """Looks after one that would have rolled back are judged all the same: the ledger has their counts."""
    looks = [look for step in ledger.steps for look in _replay_step(step, change)]
    partial = tuple((step.context.rollout_id, step.context.step) for step in ledger.steps if step.forgotten)
    return Replay(looks=tuple(looks), partial=partial)


def changed(assignments: Iterable[str]) -> Change:
    """From ``maxErrorRateIncrease=0.01`` and the like, named as in ``spec.rollout.judge``. Raises SettingsError."""
    names = {_camel(part.name): part.name for part in fields(JudgeSettings)}
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, given, text = assignment.partition("=")
        if not given or name not in names:
            raise SettingsError(
                f"{assignment!r} is no setting of the judge; say NAME=VALUE with one of {', '.join(names)}"
            )
        values[names[name]] = _value(names[name], text)
    return lambda settings: replace(settings, **_fit(settings, values))


def _replay_step(step: StepRecord, change: Change) -> list[ReplayedLook]:
    judge = StepJudge(change(step.settings), step.context, step.layout)
    replayed = []
    for look in step.looks:
        verdict = None
        if look.block is not None:
            judge.add(look.block)
            verdict = judge.verdict()
        context = step.context
        replayed.append(
            ReplayedLook(
                rollout_id=context.rollout_id,
                step=context.step,
                canary_share=context.canary_share,
                look=look,
                verdict=verdict,
            )
        )
    return replayed


def _value(name: str, text: str) -> object:
    try:
        return Mode(text) if name == "mode" else _bool(text) if name == "any_quantile" else float(text)
    except ValueError as error:
        raise SettingsError(f"{_camel(name)}={text}: not a value of it") from error


def _bool(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


def _fit(settings: JudgeSettings, values: Mapping[str, Any]) -> dict[str, Any]:
    """Whole numbers where the setting is one; lists cannot be given on a command line."""
    fitted = {}
    for name, value in values.items():
        present = getattr(settings, name)
        if name != "any_quantile" and not isinstance(present, (int, float, str)):
            raise SettingsError(f"{_camel(name)} is a list; it cannot be replayed with another one")
        fitted[name] = int(value) if type(present) is int else value
    return fitted


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
