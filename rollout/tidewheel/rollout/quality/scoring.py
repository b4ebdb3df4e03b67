"""From the answers of both versions to a verdict: may the new one get users?

Greedy answers are the same each time, so what differs is the versions. Whether it would differ on other prompts is the
question: a limit that is passed is *evident* when an exact paired test (McNemar) says that prompts which only the
canary gets wrong outnumber those which only base gets wrong by more than chance. Without that a passed limit holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb, exp, log
from typing import Final

from tidewheel.crds.rolloutchoices import OnBreach
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.quality.prompts import Reply, Shadow
from tidewheel.rollout.quality.traits import agreement, has_shape, is_loop, is_refusal

_ANSWERED: Final = 0.8
"""Below this share of prompts that both versions answered, nothing is told."""


class QualityKind(StrEnum):
    """What follows, in the words of the judge."""

    CLEAR = "CLEAR"
    SUSPECT = "SUSPECT"
    """Over a limit, though not evidently: hold."""
    BREACH = "BREACH"
    """Evidently over a limit: hold, or roll back where the rule says so."""
    BLIND = "BLIND"
    """Too few answers: hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySettings:
    """Limits. Rates are fractions of prompts, differences are canary minus base."""

    prompts: str = ""
    """ConfigMap with a prompt set, key `prompts`; empty: the built-in set."""
    on_breach: OnBreach = OnBreach.HOLD
    max_refusal_increase: float = 0.05
    max_loop_increase: float = 0.02
    max_schema_loss: float = 0.05
    """How much smaller the share of answers of the right shape may be."""
    max_error_increase: float = 0.0
    """Prompts that only the canary fails to answer."""
    max_length_ratio: float = 1.5
    """Answers longer or shorter than base's by more than this, on average."""
    min_agreement: float | None = None
    """Mean agreement with base's answers. None: recorded only, for another model may well say it otherwise."""
    max_p_value: float = 0.05
    """Of the paired test that makes a passed limit evident."""
    max_tokens: int = 128
    """Longest answer that is asked for."""

    def __post_init__(self) -> None:
        if self.max_length_ratio <= 1:
            raise SettingsError("quality.maxLengthRatio must be above 1, for example 1.5")
        if self.min_agreement is not None and not 0 <= self.min_agreement <= 1:
            raise SettingsError("quality.minAgreement must lie between 0 and 1")
        if not 0 < self.max_p_value < 1:
            raise SettingsError("quality.maxPValue must lie between 0 and 1, for example 0.05")


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityFinding:
    """One trait of the answers. ``evident``: more than chance, where that can be told."""

    name: str
    canary: float | None
    base: float | None
    estimate: float
    limit: float | None
    over: bool = False
    evident: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityVerdict:
    """May the canary get users? ``worst``: names of the prompts that say most about why not."""

    rollout_id: str = ""
    kind: QualityKind
    message: str
    findings: tuple[QualityFinding, ...] = ()
    asked: int = 0
    answered: int = 0
    worst: tuple[str, ...] = ()


def score(shadows: Sequence[Shadow], settings: QualitySettings) -> QualityVerdict:
    """The verdict over all prompts."""
    answered = [shadow for shadow in shadows if not shadow.base.error and not shadow.canary.error]
    base_answers = sum(not shadow.base.error for shadow in shadows)
    if not shadows or base_answers < _ANSWERED * len(shadows):
        message = f"base answered {base_answers} of {len(shadows)} shadow prompts: {_first_error(shadows)}"
        return QualityVerdict(kind=QualityKind.BLIND, message=message, asked=len(shadows), answered=len(answered))
    findings = tuple(_findings(shadows, answered, settings))
    over = [finding for finding in findings if finding.over]
    evident = [finding for finding in over if finding.evident]
    kind = QualityKind.BREACH if evident else QualityKind.SUSPECT if over else QualityKind.CLEAR
    telling = (evident or over or findings)[0]
    return QualityVerdict(
        kind=kind,
        message=_message(kind, telling, asked=len(shadows)),
        findings=findings,
        asked=len(shadows),
        answered=len(answered),
        worst=_worst(shadows),
    )


Trait = Callable[[Shadow, Reply], bool]


def _findings(shadows: Sequence[Shadow], answered: Sequence[Shadow], settings: QualitySettings) -> list[QualityFinding]:
    shaped = [shadow for shadow in answered if shadow.prompt.schema is not None]
    findings = [
        _rate("errors", shadows, _failed, limit=settings.max_error_increase, settings=settings),
        _rate("refusals", answered, _refused, limit=settings.max_refusal_increase, settings=settings),
        _rate("loops", answered, _looped, limit=settings.max_loop_increase, settings=settings),
    ]
    if shaped:
        findings.append(_rate("wrong-shape", shaped, _misshapen, limit=settings.max_schema_loss, settings=settings))
    if answered:
        findings += [_length(answered, settings), _agreement(answered, settings)]
    return findings


def _rate(
    name: str, shadows: Sequence[Shadow], trait: Trait, *, limit: float, settings: QualitySettings
) -> QualityFinding:
    pairs = [(trait(shadow, shadow.canary), trait(shadow, shadow.base)) for shadow in shadows]
    total = max(1, len(pairs))
    canary, base = sum(mine for mine, _ in pairs), sum(theirs for _, theirs in pairs)
    only_canary = sum(mine and not theirs for mine, theirs in pairs)
    only_base = sum(theirs and not mine for mine, theirs in pairs)
    increase = (canary - base) / total
    chance = paired_p_value(only_canary, only_base)
    return QualityFinding(
        name=name,
        canary=canary / total,
        base=base / total,
        estimate=increase,
        limit=limit,
        over=increase > limit,
        evident=chance <= settings.max_p_value,
        words=f"{name} canary {canary}/{len(pairs)}, base {base}/{len(pairs)} "
        f"(limit +{limit:.0%}; by chance {chance:.2g})",
    )


def _length(answered: Sequence[Shadow], settings: QualitySettings) -> QualityFinding:
    """Geometric mean of the ratios; a sign test says whether most prompts agree."""
    logs = [log((len(s.canary.text.split()) + 1) / (len(s.base.text.split()) + 1)) for s in answered]
    ratio = exp(sum(logs) / len(logs))
    drift = max(ratio, 1 / ratio)
    longer, shorter = sum(value > 0 for value in logs), sum(value < 0 for value in logs)
    chance = paired_p_value(max(longer, shorter), min(longer, shorter))
    words = f"answers {ratio:.2f}x as long as base's (limit {settings.max_length_ratio:.2f}x; by chance {chance:.2g})"
    return QualityFinding(
        name="length",
        canary=sum(len(s.canary.text.split()) for s in answered) / len(answered),
        base=sum(len(s.base.text.split()) for s in answered) / len(answered),
        estimate=drift,
        limit=settings.max_length_ratio,
        over=drift > settings.max_length_ratio,
        evident=chance <= settings.max_p_value,
        words=words,
    )


def _agreement(answered: Sequence[Shadow], settings: QualitySettings) -> QualityFinding:
    likeness = [agreement(shadow.canary.text, shadow.base.text) for shadow in answered]
    mean, same = sum(likeness) / len(likeness), sum(value == 1.0 for value in likeness)
    limit = settings.min_agreement
    below = sum(value < (limit or 0.0) for value in likeness)
    bound = f" (at least {limit:.0%})" if limit is not None else ""
    return QualityFinding(
        name="agreement",
        canary=None,
        base=None,
        estimate=mean,
        limit=limit,
        over=limit is not None and mean < limit,
        evident=paired_p_value(below, len(likeness) - below) <= settings.max_p_value,
        words=f"agreement with base {mean:.0%}{bound}, {same} of {len(likeness)} answers the same",
    )


def paired_p_value(worse: int, better: int) -> float:
    """Chance of at least so many `worse` among the prompts that differ, were each as likely either way (McNemar)."""
    differ = worse + better
    at_least: int = sum(comb(differ, count) for count in range(worse, differ + 1))
    return float(at_least / (1 << differ))


def _failed(_: Shadow, reply: Reply) -> bool:
    return bool(reply.error)


def _refused(_: Shadow, reply: Reply) -> bool:
    return is_refusal(reply.text)


def _looped(_: Shadow, reply: Reply) -> bool:
    return is_loop(reply.text)


def _misshapen(shadow: Shadow, reply: Reply) -> bool:
    return not has_shape(reply.text, shadow.prompt.schema or {})


def _message(kind: QualityKind, telling: QualityFinding, *, asked: int) -> str:
    if kind is QualityKind.CLEAR:
        return f"{asked} shadow prompts: no trait of the answers is over its limit"
    sure = "evidently" if kind is QualityKind.BREACH else "perhaps by chance"
    return f"{asked} shadow prompts, over a limit, {sure}: {telling.words}"


def _first_error(shadows: Sequence[Shadow]) -> str:
    return next((shadow.base.error for shadow in shadows if shadow.base.error), "no prompt was asked")


def _worst(shadows: Sequence[Shadow], most: int = 5) -> tuple[str, ...]:
    """By what is wrong with the canary alone, then by how little it agrees."""

    def badness(shadow: Shadow) -> tuple[int, float]:
        traits: Sequence[Trait] = (_failed, _refused, _looped)
        wrong = sum(trait(shadow, shadow.canary) and not trait(shadow, shadow.base) for trait in traits)
        if shadow.prompt.schema is not None:
            wrong += _misshapen(shadow, shadow.canary) and not _misshapen(shadow, shadow.base)
        return -wrong, agreement(shadow.canary.text, shadow.base.text)

    ranked = sorted(shadows, key=badness)
    return tuple(shadow.prompt.name for shadow in ranked[:most] if badness(shadow) < (0, 1.0))
