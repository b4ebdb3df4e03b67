"""One request: its tokens, how far they are computed, and when it ends."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidewheel.engine.errors import RequestError

if TYPE_CHECKING:
    from tidewheel.engine.blocks import Block


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    """`ABORTED` and `FAILED` never reach a client as a finish_reason: they become an error or silence."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None  # alternatives to report beside the token's own; None: report nothing

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def edits_logits(self) -> bool:
        """Whether the logits change before the greedy pick."""
        return bool(
            self.logit_bias
            or self.min_tokens
            or self.repetition_penalty != 1.0
            or self.frequency_penalty
            or self.presence_penalty
        )


class Constraint(Protocol):
    """What the next token may be, for a reply with a structure. Belongs to the step loop."""

    def allowed_tokens(self) -> bytes | None:
        """A bit for each token id, lowest first; None if it cannot go on."""
        ...

    def accept(self, token_id: int) -> bool:
        """Take the token that was chosen; False if it does not fit."""
        ...


class Logprobs(NamedTuple):
    """Natural logarithms under the model's own distribution: before bias, penalties and temperature."""

    own: float
    top: tuple[tuple[int, float], ...]  # token id and logprob, best first


class Output(NamedTuple):
    """What one step produced for one request, as it travels to the stream that waits for it."""

    request: Request
    token_id: int | None
    finish_reason: FinishReason | None
    error: RequestError | None
    at: float
    gap: float | None = None  # seconds since the token before; None for the first
    logprobs: Logprobs | None = None


@dataclass(slots=True, eq=False)
class Request:
    id: int
    label: str  # the X-Request-Id: for logs and /abort, never a key of our own
    token_ids: list[int]  # prompt, then output
    num_prompt: int
    max_tokens: int
    sampling: SamplingParams
    eos_ids: frozenset[int]
    lane: str
    arrived_at: float
    deliver: Callable[[Output], None]
    tenant: str = ""
    salt: bytes = b""
    constraint: Constraint | None = None
    is_warm_up: bool = False

    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    error: RequestError | None = None
    num_computed: int = 0
    num_cached: int = 0  # prompt tokens found in the cache at first admission
    num_hit: int = 0  # the same at the latest admission: what a preemption would not lose
    num_published: int = 0  # leading blocks that are in the cache's map
    num_preemptions: int = 0
    num_evictions: int = 0  # those of them that made room for a higher lane
    blocks: list[Block] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)

    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    token_gap: float | None = None  # seconds between the last two tokens

    @property
    def num_known(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED

    def count_as_output(self, emitted: int) -> None:
        """The last tokens of the prompt are this reply's own, written elsewhere before; limits are of what follows."""
        self.num_prompt -= emitted
        self.max_tokens += emitted
        self.sampling = replace(
            self.sampling, min_tokens=self.sampling.min_tokens and self.sampling.min_tokens + emitted
        )

    def append(self, token_id: int, *, now: float) -> FinishReason | None:
        """Take a sampled token and say whether it is the last one. Stop strings are the stream's business."""
        self.token_ids.append(token_id)
        if self.last_token_at is None:
            self.first_token_at = now
        else:
            self.token_gap = now - self.last_token_at
        self.last_token_at = now
        if self.num_output >= self.sampling.min_tokens:
            if token_id in self.sampling.stop_token_ids:
                return FinishReason.STOP
            if token_id in self.eos_ids and not self.sampling.ignore_eos:
                return FinishReason.STOP
        return FinishReason.LENGTH if self.num_output >= self.max_tokens else None
