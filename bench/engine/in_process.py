"""The engine's program inside the benchmark's own process, so that its threads can be timed one by one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn

from tidewheel.engine.api import create_app
from tidewheel.engine.assembly import build_runner, build_scheduler
from tidewheel.engine.engine import Engine
from tidewheel.engine.faults import Faults
from tidewheel.engine.lifecycle import EngineServer
from tidewheel.engine.metrics import Metrics
from tidewheel.engine.request import Request
from tidewheel.engine.runner import Runner
from tidewheel.engine.scheduler import Sampled, Step
from tidewheel.engine.server import bind
from tidewheel.engine.service import Dispatcher, Service
from tidewheel.engine.settings import Settings


class MeteredRunner:
    """A runner with a stopwatch: wall time and the CPU time of the thread that calls it, in seconds."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.wall_seconds = 0.0
        self.cpu_seconds = 0.0
        self.steps = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)

    def execute(self, step: Step) -> dict[Request, Sampled]:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return self._runner.execute(step)
        finally:
            self.wall_seconds += time.perf_counter() - wall
            self.cpu_seconds += time.thread_time() - cpu
            self.steps += 1


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds since the server began."""

    step_wall: float  # in the runner
    loop_cpu: float  # of the step loop's thread outside the runner: scheduler, blocks, delivery
    http_cpu: float  # of the event loop's thread
    steps: int

    def __sub__(self, before: "Spent") -> "Spent":
        return Spent(
            self.step_wall - before.step_wall,
            self.loop_cpu - before.loop_cpu,
            self.http_cpu - before.http_cpu,
            self.steps - before.steps,
        )


@dataclass(frozen=True, slots=True)
class InProcess:
    port: int
    engine: Engine
    runner: MeteredRunner

    def spent(self) -> Spent:
        """To be called in the event loop's thread."""
        thread = self.engine._thread.ident
        assert thread is not None
        loop_cpu = time.clock_gettime(time.pthread_getcpuclockid(thread)) - self.runner.cpu_seconds
        return Spent(self.runner.wall_seconds, loop_cpu, time.thread_time(), self.runner.steps)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[InProcess]:
    """As `tidewheel.engine.server` puts it together, ready."""
    listener = bind(settings)
    faults = Faults.parse(())
    built, tokenizer, name = build_runner(settings, faults)
    runner = MeteredRunner(built)
    scheduler = build_scheduler(settings, built)
    metrics = Metrics(model_name=name, scheduler=scheduler)
    engine = Engine(
        runner=runner,  # type: ignore[arg-type]
        scheduler=scheduler,
        deliver=Dispatcher(asyncio.get_running_loop(), metrics.on_outputs),
        on_step=lambda step, seconds: metrics.on_step(step, scheduler),
    )
    names = settings.served_model_name or (name,)
    service = Service(engine=engine, tokenizer=tokenizer, settings=settings, metrics=metrics, model_names=names)
    config = uvicorn.Config(
        create_app(service, tokens=None, version="bench"), loop="uvloop", http="httptools", ws="none", lifespan="off",
        log_config=None, access_log=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = EngineServer(config)
    engine.start()
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await service.warm_up()
        yield InProcess(listener.getsockname()[1], engine, runner)
    finally:
        server.should_exit = True
        await running
        engine.stop()
        listener.close()
