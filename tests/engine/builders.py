"""Tiny engines: a pool of a few blocks, a scripted model, a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from tidewheel.engine.blocks import BlockPool, PrefixHasher
from tidewheel.engine.engine import Engine
from tidewheel.engine.errors import GenerationError
from tidewheel.engine.lanes import WaitingLanes
from tidewheel.engine.request import Output, Request, SamplingParams
from tidewheel.engine.scheduler import Limits, Sampled, Scheduler, Step

EOS = 2
VOCAB = 100
_ids = count(1)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Inbox:
    """What a request's stream would have received."""

    outputs: list[Output] = field(default_factory=list)

    def __call__(self, output: Output) -> None:
        self.outputs.append(output)


def make_request(
    prompt: Sequence[int] | int,
    *,
    max_tokens: int = 8,
    lane: str = "free",
    tenant: str = "",
    label: str = "",
    arrived_at: float = 0.0,
    sampling: SamplingParams | None = None,
    salt: bytes = b"",
    deliver: Callable[[Output], None] | None = None,
) -> Request:
    """`prompt` as a number: that many tokens, unlike anybody else's."""
    request_id = next(_ids)
    ids = list(prompt) if not isinstance(prompt, int) else [(request_id * 31 + i * 7) % 90 + 5 for i in range(prompt)]
    return Request(
        id=request_id,
        label=label or f"r{request_id}",
        token_ids=ids,
        num_prompt=len(ids),
        max_tokens=max_tokens,
        sampling=sampling or SamplingParams(temperature=0.0),
        eos_ids=frozenset({EOS}),
        lane=lane,
        arrived_at=arrived_at,
        deliver=deliver or Inbox(),
        tenant=tenant,
        salt=salt,
    )


def make_scheduler(
    *,
    num_blocks: int = 16,
    block_size: int = 4,
    budget: int = 64,
    max_num_seqs: int = 16,
    max_model_len: int = 1000,
    max_chunk: int | None = None,
    caches_prefixes: bool = True,
    max_wait: float = 10.0,
    seconds_per_token: float | None = None,
    floor_share: float = 0.0,
    max_seqs_per_tenant: int | None = None,
    max_blocks_per_tenant: int | None = None,
) -> Scheduler:
    return Scheduler(
        pool=BlockPool(num_blocks=num_blocks, block_size=block_size, caches_prefixes=caches_prefixes),
        hasher=PrefixHasher(root=b"test", block_size=block_size),
        lanes=WaitingLanes(("paid", "free", "background"), max_wait=max_wait, floor_share=floor_share),
        limits=Limits(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_chunk=max_chunk,
            seconds_per_token=seconds_per_token,
            max_seqs_per_tenant=max_seqs_per_tenant,
            max_blocks_per_tenant=max_blocks_per_tenant,
        ),
    )


def next_token(ids: Sequence[int]) -> int:
    """The scripted model: a pure function of the whole context, never EOS."""
    state = 17
    for token_id in ids:
        state = (state * 31 + token_id) % 1_000_003
    return 5 + state % 90


@dataclass
class ScriptedRunner:
    """Answers with `next_token`, after checking that the KV it would read was written by the right tokens."""

    num_blocks: int = 16
    block_size: int = 4
    max_model_len: int = 1000
    vocab_size: int = VOCAB
    name: str = "torch"
    kernels: str = "none"
    has_logits: bool = False
    choose: Callable[[Request], int | None] | None = None
    before_step: Callable[[Step], None] | None = None
    memory: dict[tuple[int, int], int] = field(default_factory=dict)
    num_computed: int = 0

    def execute(self, step: Step) -> dict[Request, Sampled]:
        if self.before_step is not None:
            self.before_step(step)
        sampled = {}
        for request, start, length in step.work.values():
            self.num_computed += length
            for position in range(start, start + length):
                block = request.blocks[position // self.block_size]
                self.memory[block.id, position % self.block_size] = request.token_ids[position]
            self._check_memory(request, start + length)
            if start + length == request.num_known:
                sampled[request] = self._answer(request)
        return sampled

    def _answer(self, request: Request) -> Sampled:
        token_id = next_token(request.token_ids) if self.choose is None else self.choose(request)
        if token_id is None:
            return Sampled(None, GenerationError("scripted failure"))
        return Sampled(token_id)

    def _check_memory(self, request: Request, length: int) -> None:
        held = [self.memory[request.blocks[p // self.block_size].id, p % self.block_size] for p in range(length)]
        assert held == request.token_ids[:length], f"{request.label} would read another request's KV"


class AnyTokenRunner(ScriptedRunner):
    """Writes the same token for ever and keeps no KV: for what depends on time and order alone."""

    def execute(self, step: Step) -> dict[Request, Sampled]:
        if self.before_step is not None:
            self.before_step(step)
        return {item.request: Sampled(7) for item in step.work.values() if item.samples}


def make_engine(
    scheduler: Scheduler,
    runner: ScriptedRunner | None = None,
    *,
    clock: Callable[[], float] | None = None,
) -> Engine:
    pool = scheduler.pool
    runner = runner or ScriptedRunner()
    runner.num_blocks, runner.block_size = pool.num_blocks, pool.block_size

    def deliver(outputs: list[Output]) -> None:
        for output in outputs:
            output.request.deliver(output)

    return Engine(runner=runner, scheduler=scheduler, deliver=deliver, clock=clock or Clock())


def run_until_idle(engine: Engine, *, max_steps: int = 2000) -> int:
    """Step until nothing is left, checking the books after each step; how many steps it took."""
    for steps in range(max_steps):
        if not engine.has_work:
            return steps
        engine.step()
        engine.scheduler.check()
    raise AssertionError(f"still working after {max_steps} steps")


def output_of(request: Request) -> list[int]:
    return request.token_ids[request.num_prompt :]


def uninterrupted(prompt: Sequence[int], num_tokens: int) -> list[int]:
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(next_token(ids))
    return ids[len(prompt) :]
