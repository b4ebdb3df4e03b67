"""One step as it goes on: readings come in, blocks are cut, a verdict goes out."""

from collections.abc import Callable, Iterable

from tidewheel.rollout.judge.blindness import troubles_of, without_traffic
from tidewheel.rollout.judge.blocks import Block, cut_block
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.judge.readings import Reading, Seconds, Trouble
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.judge.steps import Layout, StepContext, lay_out
from tidewheel.rollout.judge.verdicts import StepJudge

_EARLY = 0.5
"""Seconds by which a block may be short: ticks are not exact."""
_MOST_CREDIT = 2.0
"""A block longer than this many blocks is evidence, but nobody knows what happened meanwhile: no bake time."""


class StepSession:
    """Holds the last reading and the judge of one step. What it holds can be lost: blocks come back from the ledger."""

    def __init__(
        self,
        settings: JudgeSettings,
        step: StepContext,
        *,
        layout: Layout | None = None,
        blocks: Iterable[Block] = (),
        judge: Callable[[JudgeSettings, StepContext, Layout], StepJudge] = StepJudge,
    ) -> None:
        self.settings, self.step = settings, step
        self._new_judge = judge
        self._judge = judge(settings, step, layout) if layout is not None else None
        self._before: Reading | None = None
        self._blind_since: Seconds | None = None
        self._verdict: Verdict | None = None
        self.last_block: Block | None = None
        for block in blocks:
            assert self._judge is not None, "blocks come with the layout they were cut for"
            self._judge.add(block)

    @property
    def layout(self) -> Layout | None:
        """For the ledger, which must carry it beside the blocks."""
        return self._judge.layout if self._judge is not None else None

    @property
    def first_look(self) -> Seconds:
        """No reading before this counts: gateways have confirmed, and the scrapes since have settled."""
        return self.step.confirmed_at + self.settings.settle_scrapes * self.settings.scrape_seconds

    @property
    def block_ends(self) -> Seconds | None:
        """When the block under way can be judged. None: none has begun."""
        return None if self._before is None else self._before.at + self.settings.block_seconds

    def observe(self, reading: Reading) -> Verdict | None:
        """The verdict now. None: too early to say anything. A look between two blocks repeats the last verdict."""
        self.last_block = None
        if reading.at < self.first_look:
            return None
        if troubles := troubles_of(reading, self.settings):
            return self._blind(reading, troubles[0])
        if self._judge is None:
            return self._begin(reading)
        before = self._before
        if before is None:
            self._before, self._blind_since = reading, None
            return self._verdict
        if reading.at - before.at < self.settings.block_seconds - _EARLY:
            return self._verdict
        return self._look(before, reading, self._judge)

    def _begin(self, reading: Reading) -> Verdict | None:
        layout = lay_out(reading)
        if layout is None:
            return self._say_blind(reading.at, Trouble("NoHistory", "base has served too few requests to compare with"))
        self._judge = self._new_judge(self.settings, self.step, layout)
        self._before, self._blind_since = reading, None
        return self._verdict

    def _look(self, before: Reading, reading: Reading, judge: StepJudge) -> Verdict:
        longest = _MOST_CREDIT * self.settings.block_seconds
        counts_time = self._blind_since is None and reading.at - before.at <= longest
        block = cut_block(before, reading, counts_time=counts_time)
        self._before, self._blind_since = reading, None
        if isinstance(block, Trouble):
            return self._say_blind(reading.at, block)
        if idle := without_traffic(block.base.requests + block.canary.requests):
            return self._say_blind(reading.at, idle)
        self.last_block = block
        judge.add(block)
        self._verdict = judge.verdict()
        return self._verdict

    def _blind(self, reading: Reading, trouble: Trouble) -> Verdict:
        """The last good reading is kept: what happened meanwhile is evidence, though no bake time."""
        if self._blind_since is None:
            self._blind_since = reading.at
        return self._say_blind(reading.at, trouble)

    def _say_blind(self, at: Seconds, trouble: Trouble) -> Verdict:
        metric = f" ({trouble.metric})" if trouble.metric else ""
        self._verdict = Verdict(
            rollout_id=self.step.rollout_id,
            step=self.step.step,
            at=at,
            kind=VerdictKind.BLIND,
            reason=trouble.reason,
            message=f"cannot judge{metric}: {trouble.message}",
        )
        return self._verdict
