"""The step loop: schedule, run, book. It has its own thread and never touches text, JSON or sockets."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from tidewheel.engine.errors import EngineDeadError, GenerationError
from tidewheel.engine.limits import StepLoad, StepTimeModel
from tidewheel.engine.request import FinishReason, Output, Request
from tidewheel.engine.runner import Runner
from tidewheel.engine.scheduler import Scheduler, Step

logger = logging.getLogger(__name__)

# Weight of the newest step in the smoothed step time.
_SMOOTHING = 0.2
_SECONDS_BETWEEN_FITS = 0.1


class Engine:
    """`submit`, `abort` and the readings may be called from any thread; everything else belongs to the loop's.

    `deliver` gets the outputs of each step, in the loop's thread. `on_step` sees each step after it ran, with its
    duration in seconds.
    """

    def __init__(
        self,
        *,
        runner: Runner,
        scheduler: Scheduler,
        deliver: Callable[[list[Output]], None],
        on_step: Callable[[Step, float], None] = lambda step, seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self._deliver = deliver
        self._on_step = on_step
        self._clock = clock
        self._inbox: deque[tuple[Request, FinishReason | None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._last_progress = clock()
        self.death: BaseException | None = None
        self.step_time: float | None = None
        self.step_times = StepTimeModel()
        self._next_fit = clock()
        self.num_steps = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    def submit(self, request: Request) -> None:
        if self.death is not None:
            raise EngineDeadError("The engine's step loop has died.") from self.death
        self._send(request, None)

    def abort(self, request: Request, reason: FinishReason = FinishReason.ABORTED) -> None:
        """Ends the request between two steps, whatever its state; the second call does nothing."""
        self._send(request, reason)

    @property
    def has_work(self) -> bool:
        return bool(self._inbox) or self.scheduler.has_work

    @property
    def num_waiting(self) -> int:
        """Requests in the lanes or on their way there."""
        return len(self.scheduler.waiting) + len(self._inbox)

    def seconds_without_progress(self) -> float:
        """Zero while idle: an engine with nothing to do is healthy."""
        return self._clock() - self._last_progress if self.has_work else 0.0

    def step(self) -> None:
        """One turn of the loop. Public for tests, which run it without the thread."""
        self._take_inbox()
        if not self.scheduler.has_work:
            return
        began = self._clock()
        step = self.scheduler.schedule(began)
        load = step.load()
        sampled = self.runner.execute(step) if step.work else {}
        now = self._clock()
        outputs = self.scheduler.complete(step, sampled, now=now)
        self._note(step, load, now - began, now)
        if outputs:
            self._deliver(outputs)

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self.step()
        except BaseException as error:
            logger.exception("the step loop died")
            self.death = error
            self._fail_everything()

    def _wait_for_work(self) -> bool:
        if self.has_work:
            return not self._stopping
        with self._wake:
            while not self._inbox and not self._stopping:
                self._wake.wait()
        # Idle time is not a lack of progress.
        self._last_progress = self._clock()
        return not self._stopping

    def _send(self, request: Request, reason: FinishReason | None) -> None:
        with self._wake:
            if not self.has_work:
                self._last_progress = self._clock()
            self._inbox.append((request, reason))
            self._wake.notify()

    def _take_inbox(self) -> None:
        ended: list[Output] = []
        while self._inbox:
            request, reason = self._inbox.popleft()
            if reason is None:
                if not request.is_finished:
                    self.scheduler.submit(request)
            elif self.scheduler.abort(request, reason):
                ended.append(Output(request, None, reason, None, self._clock()))
        if ended:
            self._deliver(ended)

    def _note(self, step: Step, load: StepLoad, seconds: float, now: float) -> None:
        self._last_progress = now
        self.num_steps += 1
        if step.work:
            old = self.step_time
            self.step_time = seconds if old is None else old + _SMOOTHING * (seconds - old)
            self.step_times.observe(load, seconds)
        if self.scheduler.limits.seconds_per_token is not None and now >= self._next_fit:
            self._next_fit = now + _SECONDS_BETWEEN_FITS
            fit = self.step_times.fit()
            self.scheduler.prefill_limit.update(fit)
            if load.num_decodes:
                context = load.num_context_tokens / load.num_decodes
                self.scheduler.limit.update(fit, mean_context=context, now=now)
        self._on_step(step, seconds)

    def _fail_everything(self) -> None:
        error = GenerationError("The engine died while it worked on this request.", code="engine_dead")
        now = self._clock()
        inbox = [request for request, reason in self._inbox if reason is None]
        still_open = [r for r in (*self.scheduler.running, *self.scheduler.waiting, *inbox) if not r.is_finished]
        self._deliver([Output(r, None, FinishReason.FAILED, error, now) for r in still_open])
