"""Whether the arms can be compared: the share that arrives, what is asked, and how loaded the replicas are."""

from collections.abc import Sequence
from math import log
from typing import Final

from tidewheel.rollout.evidence.processes import EvidenceProcess, Side, log_mean_exp
from tidewheel.rollout.judge.blocks import Block, Counts, add_counts
from tidewheel.rollout.judge.findings import percent
from tidewheel.rollout.judge.quantiles import compare, landmarks, over_edge
from tidewheel.rollout.judge.settings import JudgeSettings

_NEARLY_ALL: Final = 0.9999
_TINY: Final = 1e-9
_PROMPT_SHARES: Final = (0.10, 0.50)


def is_comparable(block: Block, settings: JudgeSettings) -> bool:
    """Both arms carried about the same load per replica; not, where it is unknown."""
    low, high = settings.load_ratio
    return block.load_ratio is not None and low <= block.load_ratio <= high


class ShareWatch:
    """The canary's observed share against its weight, before anything else is believed."""

    def __init__(self, weight: float, settings: JudgeSettings, *, needed_odds: float) -> None:
        self._needed = log(needed_odds)
        self._weight = weight
        most = min(weight * settings.share_tolerance + settings.share_slack, _NEARLY_ALL)
        least = max(weight / settings.share_tolerance - settings.share_slack, 0.0)
        self._limits = (
            (EvidenceProcess(), most / (1 - most)),
            (EvidenceProcess(side=Side.BELOW), least / (1 - least)),
        )
        self._canary = self._both = 0.0

    def add(self, block: Block) -> None:
        """One block."""
        self._canary += block.canary.requests
        self._both += block.canary.requests + block.base.requests
        for process, limit_odds in self._limits:
            process.add(limit_odds=limit_odds, counts=[(block.canary.requests, block.base.requests)])

    def skew(self) -> str:
        """Why the split is not what was set; empty: it is."""
        if max(process.log_evidence()[0] for process, _ in self._limits) < self._needed:
            return ""
        return f"the canary gets {percent(self._canary / self._both)} of requests instead of {percent(self._weight)}"


class MixWatch:
    """Prompt lengths of both arms: a canary that gets longer prompts is slower to its first token through no fault."""

    def __init__(self, *, edges: Sequence[float], tolerance: float) -> None:
        self._prompt_edges = tuple(edges)
        self._tolerance = tolerance
        self._edges: tuple[int, ...] = ()
        self._longer = self._shorter = EvidenceProcess()
        self._canary: Counts = ()
        self._base: Counts = ()

    def add(self, block: Block) -> None:
        """One block; the first only chooses the edges."""
        canary, base = block.canary.prompt_tokens, block.base.prompt_tokens
        if not sum(canary) or not sum(base):
            return
        if not self._edges:
            self._edges = landmarks(base, shares=_PROMPT_SHARES)
            self._longer, self._shorter = (EvidenceProcess(columns=max(1, len(self._edges))) for _ in range(2))
            self._canary = self._base = (0.0,) * len(base)
            return
        self._canary = add_counts((self._canary, canary))
        self._base = add_counts((self._base, base))
        over = [(over_edge(canary, edge), over_edge(base, edge)) for edge in self._edges]
        ratio = sum(canary) / sum(base)
        self._longer.add(limit_odds=self._tolerance * ratio, counts=over)
        self._shorter.add(limit_odds=self._tolerance / ratio, counts=[(theirs, mine) for mine, theirs in over])

    def log_evidence(self) -> float:
        """That prompts differ by more than is tolerated, either way."""
        return log_mean_exp((*self._longer.log_evidence(), *self._shorter.log_evidence()))

    def prompt_ratio(self) -> float:
        """How much longer the canary's prompts are, at the quantile where it is most; at least 1."""
        if not self._prompt_edges or not self._canary:
            return 1.0
        worst = compare(self._canary, self._base, edges=self._prompt_edges, any_quantile=True)
        return max(1.0, worst.ratio) if worst is not None else 1.0

    def words(self) -> str:
        """How they differ, at the edge where it shows most."""
        shares = [
            (over_edge(self._canary, edge) / sum(self._canary), over_edge(self._base, edge) / sum(self._base))
            for edge in self._edges
        ]
        mine, theirs = max(shares, key=lambda pair: abs(log((pair[0] + _TINY) / (pair[1] + _TINY))))
        return f"the arms get different prompts: {percent(mine)} of the canary's are long, {percent(theirs)} of base's"
