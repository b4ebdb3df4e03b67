"""Which tokens the next step computes.

One rule for prefill and decode: a request has `num_known` tokens, of which `num_computed` have KV. A step gives it
min(known - computed, budget left); it samples iff that reaches known. Chunked prefill, prefix hits and resumption
after preemption are all that one rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidewheel.engine.blocks import Block, BlockPool, PrefixHasher
from tidewheel.engine.errors import ContextLengthError, GenerationError, InvalidRequestError, RequestError
from tidewheel.engine.lanes import WaitingLanes
from tidewheel.engine.limits import ConcurrencyLimit, PrefillLimit, StepLoad
from tidewheel.engine.request import FinishReason, Logprobs, Output, Request, Status


class Scheduled(NamedTuple):
    request: Request
    start: int  # first position computed in this step
    num_tokens: int

    @property
    def samples(self) -> bool:
        return self.start + self.num_tokens == self.request.num_known


@dataclass(slots=True)
class Step:
    """What one step computes. `finished` are requests that could not go on for want of memory."""

    budget: int
    work: dict[Request, Scheduled] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)

    @property
    def scheduled(self) -> list[Scheduled]:
        return list(self.work.values())

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.work.values())

    def load(self) -> StepLoad:
        decodes = [item for item in self.work.values() if item.num_tokens == 1]
        context = sum(item.start + 1 for item in decodes)
        pairs = sum(n * start + n * (n + 1) // 2 for _, start, n in self.work.values() if n > 1)
        return StepLoad(self.num_tokens - len(decodes), len(decodes), context, pairs)


class Sampled(NamedTuple):
    """The runner's answer for one request that samples: a token, or why there is none."""

    token_id: int | None
    error: RequestError | None = None
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048  # tokens a step may compute, prefill and decode together
    max_chunk: int | None = None  # prefill tokens one request may take of a step; None: all that is left
    max_waiting: int = 4096
    seconds_per_token: float | None = None  # target for a step, to which chunks and the number running adapt
    max_seqs_per_tenant: int | None = None  # hard caps; requests that name no tenant have none
    max_blocks_per_tenant: int | None = None
    max_evictions: int = 3  # by higher lanes; a request that was evicted so often counts as of the highest

    def __post_init__(self) -> None:
        optional = ("max_seqs_per_tenant", "max_blocks_per_tenant")
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_waiting", *optional):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")


class Scheduler:
    def __init__(self, *, pool: BlockPool, hasher: PrefixHasher, lanes: WaitingLanes, limits: Limits) -> None:
        self.pool = pool
        self.limits = limits
        self.limit = ConcurrencyLimit(ceiling=limits.max_num_seqs, seconds_per_token=limits.seconds_per_token)
        self.prefill_limit = PrefillLimit(seconds_per_token=limits.seconds_per_token)
        self.waiting = lanes
        self.running: list[Request] = []  # in admission order
        self.num_preemptions = 0
        self.num_deferred = 0  # requests that wait for their own tenant's caps, at the latest step
        self._hasher = hasher

    @property
    def has_work(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    @property
    def max_model_len(self) -> int:
        """The one limit that admission obeys and /v1/models states: the model's, the setting's and the pool's least."""
        num_blocks = min(self.pool.num_blocks, self.limits.max_blocks_per_tenant or self.pool.num_blocks)
        return min(self.limits.max_model_len, num_blocks * self.pool.block_size)

    def fit(self, *, num_prompt: int, max_tokens: int | None, param: str) -> int:
        """The number of tokens a request may write; raises if it can never fit."""
        longest = self.max_model_len
        if num_prompt == 0:
            raise InvalidRequestError(f"{param} is empty; send at least one token.", param=param)
        if num_prompt + (max_tokens or 1) > longest:
            raise ContextLengthError(max_model_len=longest, num_prompt=num_prompt, max_tokens=max_tokens, param=param)
        return max_tokens if max_tokens is not None else longest - num_prompt

    def submit(self, request: Request) -> None:
        self.waiting.push(request)

    def abort(self, request: Request, reason: FinishReason = FinishReason.ABORTED) -> bool:
        """Legal in every state, and idempotent."""
        if request.is_finished:
            return False
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, reason)
        return True

    def schedule(self, now: float) -> Step:
        step = Step(budget=self.limits.max_num_batched_tokens)
        decodes = [r for r in self.running if r.num_uncomputed == 1]
        prefills = [r for r in self.running if r.num_uncomputed > 1]
        for request in (*decodes, *prefills):
            if request.status is Status.RUNNING:
                self._continue(request, step)
        # Admitting in a step that preempted would evict and admit the same requests for ever.
        if not step.preempted:
            self._admit(step, now)
        return step

    def complete(self, step: Step, sampled: dict[Request, Sampled], *, now: float) -> list[Output]:
        """Book the results of a step; the outputs are in the step's order."""
        outputs = [Output(r, None, r.finish_reason, r.error, now) for r in step.finished]
        ended = False
        for item in step.work.values():
            request = item.request
            result = sampled.get(request)
            if request.is_finished:
                continue
            self._publish(request)
            if result is None:
                continue
            reason: FinishReason | None = FinishReason.FAILED
            if result.token_id is not None:
                reason = request.append(result.token_id, now=now)
                self.waiting.charge_output(request)
            if reason is not None:
                self._finish(request, reason, error=result.error)
                ended = True
            gap = None if result.token_id is None else request.token_gap
            outputs.append(Output(request, result.token_id, reason, result.error, now, gap, result.logprobs))
        if ended:
            self.running = [r for r in self.running if not r.is_finished]
        return outputs

    def check(self) -> None:
        """Raise if the block books do not balance."""
        self.pool.check([r.blocks for r in self.running])

    def _continue(self, request: Request, step: Step) -> None:
        """Give a running request its share of the budget, preempting others (or itself) for blocks."""
        count = self._share_of(request, step)
        if count == 0:
            return
        missing = self.pool.num_blocks_for(request.num_computed + count) - len(request.blocks)
        while missing > self.pool.num_free or self._is_over_cap(request, missing):
            over_cap = missing <= self.pool.num_free
            victim = self._choose_victim(self._running_of(request.tenant) if over_cap else self.running)
            if victim is None:
                self._end_for_want_of_memory(request, step)
                return
            self._preempt(victim, step)
            if victim is request:
                return
        if missing > 0:
            request.blocks += self.pool.take(missing)
        self._give(request, count, step)

    def _share_of(self, request: Request, step: Step) -> int:
        count = min(request.num_uncomputed, step.budget, self.limits.max_chunk or step.budget)
        if count <= 1 or self.limits.seconds_per_token is None:
            return count
        return int(min(count, self.prefill_limit.most(step.load(), start=request.num_computed)))

    def _admit(self, step: Step, now: float) -> None:
        capped: set[str] = set()
        self._admit_all_but(capped, step, now)
        self.num_deferred = self.waiting.num_waiting_of(capped)

    def _admit_all_but(self, capped: set[str], step: Step, now: float) -> None:
        """Adds to `capped` the tenants that it finds at their caps: others may overtake them."""
        while step.budget and len(self.running) < self.limit.value:
            if self.limits.seconds_per_token is not None and self.prefill_limit.most(step.load(), start=0) < 1:
                return
            request = self.waiting.peek(now, capped)
            if request is None:
                return
            if self._is_capped(request):
                capped.add(request.tenant)
                continue
            self._hasher.extend(request.block_keys, request.token_ids, salt=request.salt)
            # The last token is always computed: its logits are wanted.
            hits = self.pool.lookup(request.block_keys, request.token_ids, max_tokens=request.num_known - 1)
            if not self._has_room(request, hits) and not self._evict_lower_lanes(request, hits, step):
                # A barrier: nobody overtakes a request that does not fit, so large prompts do not starve.
                return
            self._start(request, hits, step, now)
            if step.preempted:
                return

    def _running_of(self, tenant: str) -> list[Request]:
        return [request for request in self.running if request.tenant == tenant]

    def _is_capped(self, request: Request) -> bool:
        """Whether its tenant runs as much as it may. A tenant that runs nothing may always run one request."""
        limits = self.limits
        if not request.tenant or (limits.max_seqs_per_tenant is None and limits.max_blocks_per_tenant is None):
            return False
        running = self._running_of(request.tenant)
        if limits.max_seqs_per_tenant is not None and len(running) >= limits.max_seqs_per_tenant:
            return True
        if limits.max_blocks_per_tenant is None or not running:
            return False
        # With a spare block each, as in the pool.
        wanted = self.pool.num_blocks_for(request.num_known) + len(running)
        return sum(len(r.blocks) for r in running) + wanted > limits.max_blocks_per_tenant

    def _is_over_cap(self, request: Request, missing: int) -> bool:
        most = self.limits.max_blocks_per_tenant
        if most is None or not request.tenant or missing <= 0:
            return False
        return sum(len(r.blocks) for r in self._running_of(request.tenant)) + missing > most

    def _rank(self, request: Request) -> int:
        return 0 if request.num_evictions >= self.limits.max_evictions else self.waiting.rank(request)

    def _has_room(self, request: Request, hits: Sequence[Block], *, num_evicted: int = 0, num_gained: int = 0) -> bool:
        """Room for the whole prompt and, so that decodes can grow, one spare block per running request."""
        needed = self.pool.num_blocks_for(request.num_known) - sum(1 for b in hits if b.num_holders)
        return needed + len(self.running) - num_evicted <= self.pool.num_free + num_gained

    def _evict_lower_lanes(self, request: Request, hits: Sequence[Block], step: Step) -> bool:
        """Preempt running requests of lower lanes, if that makes room; otherwise none."""
        rank = self.waiting.rank(request)
        candidates = [r for r in self.running if self._rank(r) > rank]
        kept = set(hits)
        victims: list[Request] = []
        gained = 0
        while candidates:
            victim = self._choose_victim(candidates, keep_one=False)
            assert victim is not None
            candidates.remove(victim)
            victims.append(victim)
            gained += sum(1 for block in victim.blocks if block.num_holders == 1 and block not in kept)
            if self._has_room(request, hits, num_evicted=len(victims), num_gained=gained):
                for chosen in victims:
                    chosen.num_evictions += 1
                    self._preempt(chosen, step)
                return True
        return False

    def _start(self, request: Request, hits: list[Block], step: Step, now: float) -> None:
        self.waiting.remove(request)
        self.pool.hold(hits)
        request.blocks = list(hits)
        request.num_computed = request.num_hit = len(hits) * self.pool.block_size
        request.num_published = len(hits)
        if request.scheduled_at is None:
            request.scheduled_at = now
            request.num_cached = request.num_computed
            self.waiting.charge_prompt(request)
        request.status = Status.RUNNING
        self.running.append(request)
        self._continue(request, step)

    def _give(self, request: Request, count: int, step: Step) -> None:
        step.work[request] = Scheduled(request, request.num_computed, count)
        step.budget -= count
        request.num_computed += count

    def _choose_victim(self, candidates: Sequence[Request], *, keep_one: bool = True) -> Request | None:
        """Lowest lane, least work lost, newest. The oldest of the highest lane stays, so something always ends."""
        if keep_one:
            if len(candidates) < 2:
                return None
            oldest = min(candidates, key=lambda r: (self._rank(r), r.id))
            candidates = [r for r in candidates if r is not oldest]
        return max(candidates, key=lambda r: (self._rank(r), r.num_hit - r.num_computed, r.id), default=None)

    def _preempt(self, request: Request, step: Step) -> None:
        """Recompute later: output stays output, and full blocks stay cached as long as nothing needs them."""
        item = step.work.pop(request, None)
        if item is not None:
            step.budget += item.num_tokens
        self.running.remove(request)
        self._release(request)
        request.status = Status.WAITING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.push_front(request)
        step.preempted.append(request)

    def _end_for_want_of_memory(self, request: Request, step: Step) -> None:
        """Alone and still too big for the pool: it ends with what it has, and the engine goes on."""
        error = None
        if request.num_output == 0:
            error = GenerationError("The request outgrew the KV memory of this engine.", code="out_of_kv_memory")
        self.running.remove(request)
        self._finish(request, FinishReason.FAILED if error else FinishReason.LENGTH, error=error)
        step.finished.append(request)

    def _finish(self, request: Request, reason: FinishReason, *, error: RequestError | None = None) -> None:
        request.status = Status.FINISHED
        request.finish_reason = reason
        request.error = error
        self._release(request)

    def _release(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.num_computed = request.num_published = request.num_hit = 0

    def _publish(self, request: Request) -> None:
        """After the step, so that nothing unfinished is ever found; blocks written by decode count too."""
        size = self.pool.block_size
        num_full = request.num_computed // size
        if num_full == request.num_published:
            return
        self._hasher.extend(request.block_keys, request.token_ids, salt=request.salt)
        for index in range(request.num_published, num_full):
            ids = request.token_ids[index * size : (index + 1) * size]
            self.pool.publish(request.blocks[index], request.block_keys[index], ids)
        request.num_published = num_full
