"""The ledger itself: a bounded ring of looks with their counts, and every transition."""

from dataclasses import dataclass, replace
from typing import Final

from tidewheel.rollout.judge.blocks import Block
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.judge.readings import Seconds
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.judge.steps import Layout, StepContext

KEPT_LOOKS: Final = 120
"""An hour of blocks of 30 s."""
KEPT_TRANSITIONS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look: what was said, and the block it was said about (None for a look that was blind)."""

    at: Seconds
    kind: VerdictKind
    reason: str
    message: str
    block: Block | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step: how it was judged, and its looks. ``forgotten``: how many of its first looks the ring has dropped."""

    context: StepContext
    settings: JudgeSettings
    layout: Layout
    looks: tuple[Look, ...] = ()
    forgotten: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTransition:
    """Something that happened to the rollout."""

    at: Seconds
    rollout_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Of one model; frozen, so that what is written is what was decided on."""

    steps: tuple[StepRecord, ...] = ()
    transitions: tuple[LedgerTransition, ...] = ()

    def with_look(
        self,
        *,
        context: StepContext,
        settings: JudgeSettings,
        layout: Layout,
        verdict: Verdict,
        block: Block | None,
        kept: int = KEPT_LOOKS,
    ) -> "Ledger":
        """One more look; looks that repeat the last verdict without a block of their own are not kept."""
        look = Look(at=verdict.at, kind=verdict.kind, reason=verdict.reason, message=verdict.message, block=block)
        steps = self.steps
        if steps and _same_step(steps[-1], context, settings=settings, layout=layout):
            last = steps[-1]
            if block is None and last.looks and _says_the_same(last.looks[-1], look):
                return self
            steps = (*steps[:-1], replace(last, looks=(*last.looks, look)))
        else:
            steps = (*steps, StepRecord(context=context, settings=settings, layout=layout, looks=(look,)))
        return replace(self, steps=_bounded(steps, kept))

    def with_transition(self, transition: LedgerTransition) -> "Ledger":
        """One more transition."""
        return replace(self, transitions=(*self.transitions, transition)[-KEPT_TRANSITIONS:])

    def blocks_of(self, context: StepContext, settings: JudgeSettings) -> tuple[Layout | None, tuple[Block, ...]]:
        """Evidence of a step that a restarted operator goes on with."""
        for step in reversed(self.steps):
            if step.context == context and step.settings == settings:
                return step.layout, tuple(look.block for look in step.looks if look.block is not None)
        return None, ()


def _same_step(step: StepRecord, context: StepContext, *, settings: JudgeSettings, layout: Layout) -> bool:
    """Another confirmation, as after the canary had been away, or another setting begins new evidence."""
    return step.context == context and step.settings == settings and step.layout == layout


def _says_the_same(last: Look, look: Look) -> bool:
    return (last.kind, last.reason, last.message) == (look.kind, look.reason, look.message) and last.block is None


def _bounded(steps: tuple[StepRecord, ...], kept: int) -> tuple[StepRecord, ...]:
    excess = sum(len(step.looks) for step in steps) - kept
    while excess > 0:
        oldest = steps[0]
        dropped = min(excess, len(oldest.looks))
        excess -= dropped
        if dropped == len(oldest.looks):
            steps = steps[1:]
        else:
            shorter = replace(oldest, looks=oldest.looks[dropped:], forgotten=oldest.forgotten + dropped)
            steps = (shorter, *steps[1:])
    return steps
