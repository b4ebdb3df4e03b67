"""The canary's latency against base's, by the share of requests above a few edges of their histograms."""

from collections.abc import Callable, Sequence
from math import inf, log

from tidewheel.rollout.evidence.processes import EvidenceProcess, log_mean_exp
from tidewheel.rollout.judge.blocks import Block, Counts, add_counts
from tidewheel.rollout.judge.findings import Finding, Standing, milliseconds
from tidewheel.rollout.judge.metrics import RATIO_OF, WORDS, Latency
from tidewheel.rollout.judge.quantiles import Comparison, compare, edge_after, edge_before, over_edge
from tidewheel.rollout.judge.settings import JudgeSettings

POOLED_BLOCKS = 4
POOLED_ODDS = 10.0
"""Noise that lasts over blocks makes 30 s blocks look more certain than they are; groups of four must agree, mildly."""


class EdgeEvidence:
    """Evidence that more than ``suspect`` says of one arm lies above its edges than of the other above its own."""

    def __init__(self, *, suspect_edges: Sequence[int], reference_edges: Sequence[int]) -> None:
        self._edges = tuple(zip(suspect_edges, reference_edges, strict=True))
        self._process = EvidenceProcess(columns=len(self._edges))

    def add(self, suspect: Counts, reference: Counts) -> None:
        """One block of both arms."""
        suspects, references = sum(suspect), sum(reference)
        if suspects and references:
            counts = [(over_edge(suspect, mine), over_edge(reference, other)) for mine, other in self._edges]
            self._process.add(limit_odds=suspects / references, counts=counts)

    def log_evidence(self) -> float:
        """Mean over the edges: stays evidence however the edges depend on each other."""
        return log_mean_exp(self._process.log_evidence())


class LatencyWatch:
    """Fine and gross comparison, and what is ruled out.

    *Fine* uses blocks in which both arms carried comparable load per replica, and grants ``grace``.
    *Gross* uses every block and grants what load can explain; it exists from the first block that needs it.
    """

    def __init__(
        self,
        latency: Latency,
        *,
        edges: Sequence[float],
        landmarks: Sequence[int],
        harm: float,
        grace: float,
        settings: JudgeSettings,
        needed_odds: float,
    ) -> None:
        self._latency, self._edges, self._settings = latency, tuple(edges), settings
        self._landmarks = tuple(landmarks)
        self._harm, self._needed = harm, log(needed_odds)
        self._grace = grace
        self._fine = self._worse_by(grace)
        self._pooled = self._worse_by(grace)
        self._gross: EdgeEvidence | None = None
        self._harmless = self._better_than(harm)
        self._gross_harmless: EdgeEvidence | None = None
        self._group: list[tuple[Counts, Counts]] = []
        empty = (0.0,) * (len(self._edges) + 1)
        self._comparable = (empty, empty)
        self._all = (empty, empty)
        self._comparable_blocks = self._blocks = 0

    def add(self, block: Block, *, comparable: bool) -> None:
        """One block; ``comparable``: both arms carried about the same load per replica."""
        canary, base = block.canary.latency[self._latency], block.base.latency[self._latency]
        self._blocks += 1
        self._all = (add_counts((self._all[0], canary)), add_counts((self._all[1], base)))
        if comparable:
            self._comparable_blocks += 1
            self._comparable = (add_counts((self._comparable[0], canary)), add_counts((self._comparable[1], base)))
            self._fine.add(canary, base)
            self._harmless.add(base, canary)
            self._pool(canary, base)
        elif self._gross is None:
            settings = self._settings
            grace = settings.gross_latency_ratio * self._grace / settings.max_latency_ratio
            self._gross = self._worse_by(max(grace, self._grace))
            self._gross_harmless = self._better_than(max(self._harm, settings.gross_latency_ratio))
        if self._gross is not None and self._gross_harmless is not None:
            self._gross.add(canary, base)
            self._gross_harmless.add(base, canary)

    @property
    def is_narrowed(self) -> bool:
        """Most blocks were under loads that cannot be compared."""
        return 2 * self._comparable_blocks < self._blocks

    def finding(self, *, explained: float = 1.0) -> Finding:
        """As it stands now. ``explained``: the ratio that longer prompts account for; the limit is that much wider."""
        narrowed = self.is_narrowed
        arms = self._all if narrowed else self._comparable
        limit = self._settings.gross_latency_ratio if narrowed else self._settings.max_latency_ratio
        limit *= max(1.0, explained)
        worst = compare(*arms, edges=self._edges, any_quantile=self._settings.every_quantile)
        evidence = self._evidence()
        harmless = self._gross_harmless if narrowed else self._harmless
        ruled_out = harmless.log_evidence() if harmless is not None else -inf
        return Finding(
            metric=RATIO_OF[self._latency].value,
            standing=self._standing(worst, limit, evidence=evidence, ruled_out=ruled_out),
            canary=worst.canary.value if worst else None,
            base=worst.base.value if worst else None,
            estimate=worst.ratio if worst else None,
            limit=limit,
            canary_samples=sum(arms[0]),
            base_samples=sum(arms[1]),
            evidence=evidence,
            needed=self._needed,
            ruled_out=ruled_out,
            off_scale=worst is not None and worst.canary.off_scale,
            words=_words(self._latency, worst, limit),
        )

    def _evidence(self) -> float:
        """Fine and gross averaged, which costs a factor of two and lets either be acted upon.

        Below the gross ratio the groups of four blocks must agree, else the evidence is what they say.
        """
        fine = self._fine.log_evidence()
        worst = compare(*self._comparable, edges=self._edges, any_quantile=True)
        gross = worst is not None and worst.ratio >= self._settings.gross_latency_ratio
        if not gross:
            if self._comparable_blocks < self._settings.min_latency_blocks:
                fine = min(fine, 0.0)
            elif self._pooled.log_evidence() < log(POOLED_ODDS):
                fine = min(fine, self._needed - log(2))
        return log_mean_exp((fine, self._gross.log_evidence() if self._gross is not None else 0.0))

    def _standing(self, worst: Comparison | None, limit: float, *, evidence: float, ruled_out: float) -> Standing:
        if worst is not None and worst.ratio > limit:
            return Standing.BREACH if evidence >= self._needed else Standing.SUSPECT
        return Standing.CLEAR if ruled_out >= log(self._settings.clear_odds) else Standing.THIN

    def _pool(self, canary: Counts, base: Counts) -> None:
        self._group.append((canary, base))
        if len(self._group) == POOLED_BLOCKS:
            self._pooled.add(add_counts(pair[0] for pair in self._group), add_counts(pair[1] for pair in self._group))
            self._group = []

    def _worse_by(self, grace: float) -> EdgeEvidence:
        """The canary has more above ``grace`` times an edge than base above that edge."""
        return EdgeEvidence(suspect_edges=self._shifted(edge_after, grace), reference_edges=self._landmarks)

    def _better_than(self, harm: float) -> EdgeEvidence:
        """Base has more above an edge than the canary above ``harm`` times that edge."""
        return EdgeEvidence(suspect_edges=self._landmarks, reference_edges=self._shifted(edge_before, harm))

    def _shifted(self, shift: Callable[[Sequence[float], int, float], int], factor: float) -> list[int]:
        return [shift(self._edges, edge, factor) for edge in self._landmarks]


def _words(latency: Latency, worst: Comparison | None, limit: float) -> str:
    name = WORDS[RATIO_OF[latency]]
    if worst is None:
        return f"{name}: too few requests to compare"
    beyond = "over " if worst.canary.off_scale else ""
    return (
        f"{name} p{worst.quantile * 100:g} canary {beyond}{milliseconds(worst.canary.value)}, "
        f"base {milliseconds(worst.base.value)}, {worst.ratio:.2f}x (limit {limit:.2f}x)"
    )
