"""Asking the judge only where its answer matters, which is what makes thousands of simulated rollouts affordable.

Until the bake is over, SUSPECT, CLEAR and THIN come to the same: the step goes on. So the numbers of a look are worked
out only when the bake may be over, when some evidence would be enough to act, or when the arms may not be comparable.
A test holds that rollouts end the same with and without.
"""

from math import log
from typing import Final

from tidewheel.crds.rolloutchoices import Mode
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.judge.latency import LatencyWatch
from tidewheel.rollout.judge.objectives import ObjectiveWatch
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.judge.steps import Layout, StepContext
from tidewheel.rollout.judge.verdicts import StepJudge

NOT_ASKED: Final = "NotAsked"
_ROUNDING: Final = 1e-6


class QuickJudge(StepJudge):
    """The judge of a step of ``bake_seconds``; a look that cannot matter gets ``NOT_ASKED``, with its bake time."""

    def __init__(self, settings: JudgeSettings, step: StepContext, layout: Layout, *, bake_seconds: float) -> None:
        super().__init__(settings, step, layout)
        self._bake_seconds = bake_seconds
        self._enough = log(self._needed) - _ROUNDING

    def verdict(self) -> Verdict:
        """As the judge's own, or ``NOT_ASKED``."""
        if self._may_matter():
            return super().verdict()
        last = self.blocks[-1]
        return Verdict(
            rollout_id=self.step.rollout_id,
            step=self.step.step,
            at=last.end,
            kind=VerdictKind.THIN,
            reason=NOT_ASKED,
            message="nothing would follow",
            credit=(last.start, last.end) if last.counts_time else None,
        )

    def _may_matter(self) -> bool:
        baked = self.blocks[-1].end - self.blocks[0].start >= self._bake_seconds
        if baked or self._custom or self.settings.mode is not Mode.EVIDENCE:
            return True
        if self._share.skew() or self._mix.log_evidence() >= self._enough:
            return True
        return any(self._is_close(watch) for watch in self._watches.values())

    def _is_close(self, watch: object) -> bool:
        if isinstance(watch, LatencyWatch):
            return watch._gross is not None or watch._fine.log_evidence() >= self._enough
        if isinstance(watch, ObjectiveWatch):
            shares = [watch._share(arm) or 0.0 for arm in ("canary", "base")]
            return min(shares) > watch._limit or watch._over_limit.log_evidence()[0] >= self._enough
        return bool(watch._worse.log_evidence()[0] >= self._enough)  # type: ignore[attr-defined]
