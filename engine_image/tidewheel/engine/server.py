"""The process: build the engine, serve it, report why it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from importlib.metadata import PackageNotFoundError, version

import uvicorn

from tidewheel.engine.api import create_app
from tidewheel.engine.assembly import build_runner, build_scheduler
from tidewheel.engine.engine import Engine
from tidewheel.engine.errors import StartError
from tidewheel.engine.faults import Faults
from tidewheel.engine.lifecycle import EngineServer, Lifecycle
from tidewheel.engine.metrics import Metrics
from tidewheel.engine.service import Dispatcher, Service
from tidewheel.engine.settings import DEFAULT_TERMINATION_LOG, Settings
from tidewheel.engine.token_file import TokenFile
from tidewheel.engine.tracing import tracing_of


def package_version() -> str:
    try:
        return version("tidewheel")
    except PackageNotFoundError:
        return "0"


async def serve(settings: Settings) -> int:
    """Serve until told to stop; the exit code. Raises StartError if it cannot begin."""
    faults = Faults.parse(settings.fault)
    path = settings.api_token_file
    tokens = None if path is None else TokenFile(path, grace=settings.api_token_grace).tokens
    with contextlib.closing(bind(settings)) as listener:
        runner, tokenizer, own_name = build_runner(settings, faults)
        scheduler = build_scheduler(settings, runner)
        names = settings.served_model_name or (own_name,)
        metrics = Metrics(model_name=names[0], scheduler=scheduler)
        engine = Engine(
            runner=runner,
            scheduler=scheduler,
            deliver=Dispatcher(asyncio.get_running_loop(), metrics.on_outputs),
            on_step=lambda step, seconds: metrics.on_step(step, scheduler),
        )
        tracing = tracing_of(settings, model=names[0])
        service = Service(
            engine=engine, tokenizer=tokenizer, settings=settings, metrics=metrics, model_names=names, faults=faults,
            tracing=tracing,
        )  # fmt: skip
        app = create_app(service, tokens=tokens, version=package_version())
        config = uvicorn.Config(
            app, loop="uvloop", http="httptools", ws="none", lifespan="off", log_config=None, access_log=False,
            timeout_keep_alive=int(settings.keep_alive), timeout_graceful_shutdown=5, server_header=False,
        )  # fmt: skip
        try:
            return await Lifecycle(service, EngineServer(config), listener).run()
        finally:
            if tracing is not None:
                await asyncio.to_thread(tracing.close)


def bind(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise StartError(
            f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port."
        ) from error
    return listener


def report_start_error(error: StartError, termination_log: str) -> None:
    """One sentence on stderr and where Kubernetes looks for a container's last words."""
    print(f"tidewheel engine: {error}", file=sys.stderr, flush=True)
    # Kubernetes makes the default file; where it is absent nobody asked for one.
    if termination_log != DEFAULT_TERMINATION_LOG or os.path.exists(termination_log):
        with contextlib.suppress(OSError), open(termination_log, "w", encoding="utf-8") as file:
            file.write(str(error))
