"""From the blocks of a step to its verdict. First match wins; the order is `VerdictKind`'s."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Final

from tidewheel.crds.rolloutchoices import Metric, Mode
from tidewheel.rollout.judge.blocks import Block
from tidewheel.rollout.judge.custom import CustomWatch
from tidewheel.rollout.judge.fairness import MixWatch, ShareWatch, is_comparable
from tidewheel.rollout.judge.findings import Finding, Standing, Verdict, VerdictKind, odds_in_words
from tidewheel.rollout.judge.latency import LatencyWatch
from tidewheel.rollout.judge.limits import literal_findings
from tidewheel.rollout.judge.metrics import RATIO_OF, SLO_OF, Latency
from tidewheel.rollout.judge.objectives import ObjectiveWatch
from tidewheel.rollout.judge.proportions import ProportionWatch
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.judge.steps import Layout, StepContext

_TTFT_METRICS: Final = frozenset({Metric.TTFT.value, Metric.TTFT_SLO.value})
_KINDS: Final = {metric: kind for kind in Latency for metric in (SLO_OF[kind], RATIO_OF[kind])}
_REASONS: Final = {
    Metric.ERRORS: "ErrorRate",
    Metric.STALLS: "Stalls",
    Metric.TPOT_SLO: "TpotOverSlo",
    Metric.TPOT: "TpotRatio",
    Metric.TTFT_SLO: "TtftOverSlo",
    Metric.TTFT: "TtftRatio",
}


@dataclass(frozen=True, slots=True)
class _Skew:
    reason: str
    message: str


class StepJudge:
    """Folds blocks, in order; the same blocks give the same verdict, now or replayed years later."""

    def __init__(self, settings: JudgeSettings, step: StepContext, layout: Layout) -> None:
        self.settings, self.step, self.layout = settings, step, layout
        self.blocks: list[Block] = []
        self._needed = settings.needed_odds(step.judged_steps)
        self._watches: dict[Metric, ProportionWatch | ObjectiveWatch | LatencyWatch] = {
            metric: self._watch(metric) for metric in settings.judged if self._is_laid_out(metric)
        }
        self._custom = [CustomWatch(metric, needed_odds=self._needed) for metric in settings.custom]
        self._share = ShareWatch(step.canary_share, settings, needed_odds=self._needed)
        self._mix = MixWatch(edges=layout.prompt_edges, tolerance=settings.mix_tolerance)

    def add(self, block: Block) -> None:
        """The next block of the step."""
        self.blocks.append(block)
        self._share.add(block)
        self._mix.add(block)
        if self.settings.mode is Mode.LIMITS:
            return
        comparable = is_comparable(block, self.settings)
        warm = block.start - self.step.rollout_started_at >= self.settings.cache_warm_seconds
        for metric, watch in self._watches.items():
            if _KINDS.get(metric) is Latency.TTFT and not warm:
                continue
            if isinstance(watch, LatencyWatch):
                watch.add(block, comparable=comparable)
            else:
                watch.add(block)
        for custom in self._custom:
            custom.add(block)

    def verdict(self) -> Verdict:
        """As it stands after the last block."""
        findings = self._findings()
        acting = [finding for finding in findings if not finding.dry_run]
        off_scale = next((finding for finding in acting if finding.off_scale and not finding.is_over_limit), None)
        breach = next((finding for finding in acting if finding.standing is Standing.BREACH), None)
        suspect = next((finding for finding in acting if finding.standing is Standing.SUSPECT), None)
        skew = self._skew(acting)
        if breach is not None:
            return self._say(VerdictKind.BREACH, _reason(breach), message=_breach_words(breach), findings=findings)
        if off_scale is not None:
            message = f"beyond the last bucket, and the limit lies there too: {off_scale.words}"
            return self._say(VerdictKind.BLIND, "OffScale", message=message, findings=findings)
        if skew is not None:
            return self._say(VerdictKind.SKEWED, skew.reason, message=skew.message, findings=findings)
        if suspect is not None:
            return self._say(VerdictKind.SUSPECT, _reason(suspect), message=_suspect_words(suspect), findings=findings)
        thin = next((finding for finding in acting if finding.standing is Standing.THIN), None)
        if thin is not None and self.settings.mode is not Mode.OBSERVE:
            return self._say(VerdictKind.THIN, "TooFewRequests", message=_thin_words(thin), findings=findings)
        return self._say(VerdictKind.CLEAR, "WithinLimits", message=self._clear_words(), findings=findings)

    def _findings(self) -> tuple[Finding, ...]:
        settings = self.settings
        if settings.mode is Mode.LIMITS:
            findings = literal_findings(self.blocks, settings=settings, edges=self.layout.edges, slo=self.step.slo)
        else:
            findings = (*map(self._finding, self._watches), *(watch.finding() for watch in self._custom))
        inert = {metric.value for metric in settings.dry_run} | self._explained_by_prompts()
        everything = settings.mode is Mode.OBSERVE
        return tuple(finding.inert() if everything or finding.metric in inert else finding for finding in findings)

    def _explained_by_prompts(self) -> set[str]:
        """Metrics that longer prompts may explain. Literal limits are literal."""
        if self.settings.mode is Mode.LIMITS:
            return set()
        if self._mix.log_evidence() >= log(self.settings.clear_odds):
            return set(_TTFT_METRICS)
        longer = self._mix.prompt_ratio() > self.settings.max_latency_ratio
        return {Metric.TTFT_SLO.value} if longer else set()

    def _finding(self, metric: Metric) -> Finding:
        watch = self._watches[metric]
        if isinstance(watch, LatencyWatch) and metric is Metric.TTFT:
            return watch.finding(explained=self._mix.prompt_ratio())
        return watch.finding()

    def _skew(self, acting: Sequence[Finding]) -> _Skew | None:
        if self.settings.mode is Mode.OBSERVE:
            return None
        if share := self._share.skew():
            return _Skew("Share", share)
        if self._mix.log_evidence() >= log(self._needed):
            return _Skew("Mix", self._mix.words())
        both = next((finding for finding in acting if finding.standing is Standing.BOTH_OVER), None)
        return _Skew("BaseAlsoBreaching", f"both versions are over their SLO: {both.words}") if both else None

    def _say(self, kind: VerdictKind, reason: str, *, message: str, findings: tuple[Finding, ...]) -> Verdict:
        last = self.blocks[-1]
        narrowed = any(watch.is_narrowed for watch in self._latency_watches())
        verdict = Verdict(
            rollout_id=self.step.rollout_id,
            step=self.step.step,
            at=last.end,
            kind=kind,
            reason=reason,
            message=message,
            findings=findings,
            narrowed="; ".join(
                [*self._unjudged(), *([self._narrowed_words(last)] if narrowed else [])],
            ),
            canary_requests=sum(block.canary.requests for block in self.blocks),
            base_requests=sum(block.base.requests for block in self.blocks),
            seconds_to_decision=self._seconds_to_decision(kind, findings),
        )
        if verdict.stops_clock or not last.counts_time:
            return verdict
        return replace(verdict, credit=(last.start, last.end))

    def _seconds_to_decision(self, kind: VerdictKind, findings: Sequence[Finding]) -> float | None:
        """A suspicion's evidence grows with the data; so long, at the pace so far."""
        if kind is not VerdictKind.SUSPECT:
            return None
        seen = self.blocks[-1].end - self.blocks[0].start
        waits = [
            seen * (finding.needed - finding.evidence) / finding.evidence
            for finding in findings
            if finding.standing is Standing.SUSPECT and finding.evidence > 1.0 and not finding.dry_run
        ]
        return min(waits, default=None)

    def _unjudged(self) -> list[str]:
        """Latencies that too few requests have to compare them."""
        left_out = sorted(
            {_KINDS[metric].value.upper() for metric in self.settings.judged if metric in _KINDS}
            - {kind.value.upper() for kind in self.layout.landmarks}
        )
        return [f"{kind} is not judged: hardly any request of base has one" for kind in left_out]

    def _latency_watches(self) -> list[LatencyWatch]:
        if self.settings.mode is Mode.LIMITS:
            return []
        return [watch for watch in self._watches.values() if isinstance(watch, LatencyWatch)]

    def _narrowed_words(self, last: Block) -> str:
        load = "unknown" if last.load_ratio is None else f"{last.load_ratio:.2f}x base's"
        return (
            f"the canary's load per replica is {load}: latencies are compared beyond "
            f"{self.settings.gross_latency_ratio:g}x only"
        )

    def _clear_words(self) -> str:
        if self.settings.mode is Mode.LIMITS:
            return "no limit is crossed; these are plain limits, chance is not accounted for"
        if self.settings.mode is Mode.OBSERVE:
            return "observed only: time alone advances"
        harm = self.step.harm(self.settings)
        return f"harm beyond +{harm.error_rate_increase:.1%} errors and {harm.latency_ratio:g}x latency is ruled out"

    def _is_laid_out(self, metric: Metric) -> bool:
        kind = _KINDS.get(metric)
        return kind is None or bool(self.layout.landmarks.get(kind))

    def _watch(self, metric: Metric) -> "ProportionWatch | ObjectiveWatch | LatencyWatch":
        settings, harm, needed = self.settings, self.step.harm(self.settings), self._needed
        kind = _KINDS.get(metric)
        if kind is None:
            limit = settings.max_error_rate_increase if metric is Metric.ERRORS else settings.max_stall_rate_increase
            return ProportionWatch(
                metric,
                limit=limit,
                harm=max(limit, harm.error_rate_increase),
                needed_odds=needed,
                clear_odds=settings.clear_odds,
            )
        if metric in SLO_OF.values():
            return ObjectiveWatch(
                kind, limit=settings.max_share_over_slo, needed_odds=needed, pooled_odds=settings.clear_odds
            )
        return LatencyWatch(
            kind,
            edges=self.layout.edges[kind],
            landmarks=self.layout.landmarks[kind],
            harm=harm.latency_ratio,
            grace=self.step.grace(settings),
            settings=settings,
            needed_odds=needed,
        )


def _reason(finding: Finding) -> str:
    return _REASONS[Metric(finding.metric)] if finding.metric in set(Metric) else "CustomMetric"


def _breach_words(finding: Finding) -> str:
    if finding.evidence == 0:
        return f"over the limit: {finding.words}"
    return f"worse than allowed and not by chance ({odds_in_words(finding.evidence)}): {finding.words}"


def _suspect_words(finding: Finding) -> str:
    needed = odds_in_words(finding.needed)
    return f"over the limit, evidence {odds_in_words(finding.evidence)} of {needed}: {finding.words}"


def _thin_words(finding: Finding) -> str:
    ruled_out = f"; harm ruled out {odds_in_words(finding.ruled_out)}" if finding.ruled_out is not None else ""
    return f"too few requests to rule out harm{ruled_out}: {finding.words}"
