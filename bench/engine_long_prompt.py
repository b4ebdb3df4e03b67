"""A prompt of 100,000 tokens beside 32 streams that decode: how long do they wait for a token?

A random model of one small layer (lengths matter here, not weights) under the real loop, scheduler and kernels.

    whole      the prompt in one step: chunking off
    chunks     512 tokens of it a step, the engine's default
    target     chunks as large as --target-ms per token allows, from the step times that the engine measures

    gap_p50/p99/max  between two tokens of a stream while the prompt was computed, in ms
    first_token      of the prompt, from its arrival, in s

--target-ms should be several times what a step of 32 decodes takes (printed as `decode_step`).
"""

import argparse
import math
import random
import threading
import time
from dataclasses import dataclass, field

from bench.engine.tiny_model import CONFIG, tiny_runner
from bench.report import Report

from tidewheel.engine.assembly import build_scheduler
from tidewheel.engine.engine import Engine
from tidewheel.engine.request import Output, Request, SamplingParams
from tidewheel.engine.settings import Settings

STREAMS = 32
_LEARNING_PROMPTS = (200, 500, 1500, 3000, 6000)


@dataclass(slots=True)
class Watch:
    """Gaps of the streams while somebody looks, and an event for the end of each prompt."""

    gaps: list[float] = field(default_factory=list)
    looking: bool = False
    answered: threading.Event = field(default_factory=threading.Event)
    first_token_at: float = 0.0

    def stream(self, output: Output) -> None:
        if self.looking and output.gap is not None:
            self.gaps.append(output.gap)

    def prompt(self, output: Output) -> None:
        self.first_token_at = output.at
        self.answered.set()


class Bench:
    def __init__(self, *, prompt: int, budget: int, target: float | None) -> None:
        length = prompt + 64
        num_blocks = math.ceil(1.5 * length / 16) + STREAMS * 2048
        settings = Settings(
            model="tiny", max_num_batched_tokens=budget, tpot_target=target, prefix_caching=False, max_num_seqs=64
        )
        runner = tiny_runner(num_blocks=num_blocks)

        def deliver(outputs: list[Output]) -> None:
            for output in outputs:
                output.request.deliver(output)

        self.engine = Engine(runner=runner, scheduler=build_scheduler(settings, runner), deliver=deliver)
        self.watch = Watch()
        self._length = prompt
        self._draw = random.Random(3)
        self._number = 0

    def run(self) -> tuple[float, list[float], float | None]:
        """Seconds to the prompt's first token, the gaps of the streams meanwhile, seconds of a step of decodes."""
        self.engine.start()
        try:
            streams = [self._request(16, CONFIG.max_position - 100, is_prompt=False) for _ in range(STREAMS)]
            for stream in streams:
                self.engine.submit(stream)
            for tokens in _LEARNING_PROMPTS:
                self._ask(min(tokens, self._length))
            steps = self.engine.num_steps
            while self.engine.num_steps < steps + 50:
                time.sleep(0.01)
            step_time = self.engine.step_time
            self.watch.looking = True
            began = time.monotonic()
            self._ask(self._length)
            self.watch.looking = False
            return self.watch.first_token_at - began, self.watch.gaps, step_time
        finally:
            self.engine.stop(timeout=600)

    def _ask(self, tokens: int) -> None:
        self.watch.answered.clear()
        self.engine.submit(self._request(tokens, 1, is_prompt=True))
        self.watch.answered.wait()

    def _request(self, num_prompt: int, max_tokens: int, *, is_prompt: bool) -> Request:
        self._number += 1
        return Request(
            id=self._number, label="bench", token_ids=self._draw.choices(range(CONFIG.vocab_size), k=num_prompt),
            num_prompt=num_prompt, max_tokens=max_tokens,
            sampling=SamplingParams(temperature=0.0, ignore_eos=True), eos_ids=frozenset(), lane="free",
            arrived_at=time.monotonic(), deliver=self.watch.prompt if is_prompt else self.watch.stream,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine_long_prompt", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="a prompt of 20,000 tokens")
    parser.add_argument("--tokens", type=int, help="of the prompt")
    parser.add_argument("--target-ms", type=float, default=50.0, help="time per output token of the case `target`")
    parser.add_argument("--cases", nargs="*", choices=("whole", "chunks", "target"), help="default: all")
    options = parser.parse_args()
    tokens = options.tokens or (20_000 if options.short else 100_000)
    report = Report("engine_long_prompt")
    settings = {
        "whole": (1 << 20, None),
        "chunks": (512, None),
        "target": (4096, options.target_ms / 1000),
    }
    for name in options.cases or settings:
        budget, target = settings[name]
        first_token, gaps, step_time = Bench(prompt=tokens, budget=budget, target=target).run()
        case = f"{name}_{tokens}"
        report.distribution(case, "gap", [1000 * gap for gap in gaps] or [1000 * first_token], "ms")
        report.measure(case, "first_token", first_token, "s")
        report.measure(case, "decode_step", 1000 * (step_time or 0.0), "ms")


if __name__ == "__main__":
    main()
