"""What a person types and sees."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from tidewheel.cli.errors import CliError

DEFAULT_PORT: Final = 8080
_ENGINE_STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What was asked for."""

    model: str
    name: str
    host: str
    port: int
    dtype: str | None
    runner: str
    kv_memory: str | None
    max_model_len: int
    start_timeout: float


@click.command()
@click.argument("model")
@click.option("--name", help="Name that clients send.  [default: from MODEL]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for everybody.")
@click.option("--port", default=DEFAULT_PORT, show_default=True, help="Port of the API; the next free one if taken.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), help="Number format of weights and activations.")
@click.option("--runner", type=click.Choice(["torch", "simulated"]), default="torch", show_default=True)
@click.option("--kv-memory", metavar="SIZE", help="Memory for KV blocks, such as 512Mi.")
@click.option("--max-model-len", default=2048, show_default=True, help="Longest prompt plus reply, in tokens.")
@click.option("--start-timeout", default=300.0, show_default=True, help="Seconds the engine may take to load.")
def serve(model: str, name: str | None, **options: object) -> None:
    """Run one engine and one gateway here, without a cluster. Ctrl-C ends both.

    MODEL is smollm2 (its weights come with the installation), a GGUF file, or a folder with safetensors.

    \b
    Examples:
      tidewheel serve smollm2
      tidewheel serve ./Qwen3-0.6B-Q8_0.gguf --name qwen --dtype float32
      tidewheel serve smollm2 --runner simulated     # timing and streaming of a real server, no model
    """
    from tidewheel.cli.serve.static_routing import model_name

    _require_programs()
    asked = ServeOptions(model=model, name=name or model_name(model), **options)  # type: ignore[arg-type]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _serve(asked)
    except KeyboardInterrupt:
        click.echo("\nstopped", err=True)


def _serve(options: ServeOptions) -> None:
    from tidewheel.cli.cluster.progress import ConsoleProgress
    from tidewheel.cli.serve import programs

    port = _choose_port(options)
    engine_port, admin_port = programs.free_port(), programs.free_port()
    if engine_port is None or admin_port is None:
        raise CliError("no free port on 127.0.0.1")
    progress = ConsoleProgress()
    with _folder() as folder:
        running: list[programs.Program] = []
        try:
            with progress.stage(f"loading {options.model} until it has generated a token", usually_seconds=10):
                engine = programs.start("engine", _engine_arguments(options, engine_port), log=folder / "engine.log")
                running.append(engine)
                programs.wait_ready(engine, port=engine_port, path="/ready", timeout_seconds=options.start_timeout)
            with progress.stage("starting the gateway", usually_seconds=1):
                arguments = _gateway_arguments(options, port, admin_port, engine_port, folder)
                gateway = programs.start("gateway", arguments, log=folder / "gateway.log")
                running.append(gateway)
                programs.wait_ready(gateway, port=port, path="/readyz", timeout_seconds=30)
            _explain(options, port=port, engine_port=engine_port, admin_port=admin_port)
            programs.watch(running)
        finally:
            programs.stop(running, timeout_seconds=_ENGINE_STOP_SECONDS)


def _engine_arguments(options: ServeOptions, port: int) -> list[str]:
    arguments = ["--model", options.model, "--host", "127.0.0.1", "--port", str(port), "--runner", options.runner]
    arguments += ["--served-model-name", options.name, "--max-model-len", str(options.max_model_len)]
    arguments += ["--shutdown-timeout", "2", "--accept-after-sigterm", "0"]
    if options.dtype:
        arguments += ["--dtype", options.dtype]
    if options.kv_memory:
        arguments += ["--kv-memory", options.kv_memory]
    return arguments


def _gateway_arguments(options: ServeOptions, port: int, admin_port: int, engine_port: int, folder: Path) -> list[str]:
    from tidewheel.cli.serve.static_routing import NAMESPACE, static_routing

    routing = folder / "routing.json"
    content = static_routing(options.name, engine_port=engine_port, max_model_len=options.max_model_len)
    routing.write_text(json.dumps(content, indent=1))
    arguments = ["--host", options.host, "--port", str(port), "--admin-port", str(admin_port)]
    arguments += ["--drain-timeout", "2", "--accept-after-sigterm", "0"]
    return [*arguments, "--namespace", NAMESPACE, "--static", str(routing)]


def _choose_port(options: ServeOptions) -> int:
    from tidewheel.cli.serve.programs import free_port

    for candidate in range(options.port, options.port + 20):
        if free_port(options.host, wanted=candidate) is not None:
            if candidate != options.port:
                click.echo(f"port {options.port} is taken; using {candidate}", err=True)
            return candidate
    raise CliError(f"ports {options.port} to {options.port + 19} are taken: choose another with --port")


def _explain(options: ServeOptions, *, port: int, engine_port: int, admin_port: int) -> None:
    body = json.dumps(
        {"model": options.name, "messages": [{"role": "user", "content": "Why is the sky blue?"}], "stream": True}
    )
    click.echo(
        f"""
{options.name} is served at http://127.0.0.1:{port}/v1 (OpenAI API)

  tidewheel chat --url http://127.0.0.1:{port}
  curl -N http://127.0.0.1:{port}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{body}'

  metrics: gateway http://127.0.0.1:{admin_port}/metrics, engine http://127.0.0.1:{engine_port}/metrics
  Ctrl-C ends it."""
    )


def _require_programs() -> None:
    """Fails in a second with the way out, rather than later inside a program."""
    missing = [package for package in ("torch", "fastapi", "uvloop") if find_spec(package) is None]
    if missing:
        raise CliError(f"{', '.join(missing)} is not installed: pip install 'tidewheel[engine,gateway,cli]'")


@contextmanager
def _folder() -> Iterator[Path]:
    """Logs and routing of this run; removed when it ends in order, left for reading when it fails."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidewheel-serve-{os.getpid()}-"))
    try:
        yield folder
    except (KeyboardInterrupt, SystemExit):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        raise
