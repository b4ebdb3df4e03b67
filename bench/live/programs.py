"""Prometheus, gateways and engines as processes of this machine, without a cluster: routing comes from a file."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.progress import ConsoleProgress
from tidewheel.cli.cluster.prometheus import PROMETHEUS
from tidewheel.cli.serve import programs
from tidewheel.crds.names import GROUP_VERSION, model_version_name
from tidewheel.crds.routingtable import Cause, RoutingTableSpec, Target

NAMESPACE: Final = "default"
MODEL: Final = "chat"
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A simulated runner. Milliseconds of a step, and of each prompt token; ``faults`` as the engine takes them."""

    version: str
    step_ms: float
    prefill_token_ms: float = 0.01
    reply_tokens: int = 64
    faults: Sequence[str] = ()


@dataclass(slots=True)
class Platform:
    """What runs. Engines are named by whoever asked for them."""

    folder: Path
    gateways: Mapping[str, int]
    """Name to port."""
    admins: Mapping[str, int]
    prometheus_url: str
    slo_ms: Mapping[str, int]
    """What every version promises."""
    engines: dict[str, int] = field(default_factory=dict)
    generation: int = 0
    writes: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    _programs: dict[str, programs.Program] = field(default_factory=dict)

    def start(self, engines: Mapping[str, Engine]) -> None:
        """Start these, and wait until they are ready."""
        for name, engine in engines.items():
            self.engines[name] = _port()
            arguments = _engine(engine, self.engines[name])
            self._programs[name] = programs.start("engine", arguments, log=self.folder / f"{name}.log")
        for name in engines:
            programs.wait_ready(self._programs[name], port=self.engines[name], path="/ready", timeout_seconds=300)

    def stop(self, names: Iterable[str]) -> None:
        """End these; nothing must be routed to them any more."""
        programs.stop([self._programs.pop(name) for name in names], timeout_seconds=10)

    def stop_all(self) -> None:
        """End every engine."""
        self.stop(list(self._programs))

    def route(
        self,
        split: Mapping[str, int],
        *,
        endpoints: Mapping[str, Sequence[str]],
        previous: Mapping[str, int],
        rollout_id: str = "",
    ) -> None:
        """Write the table that gateways follow: one file, replaced whole."""
        self.generation += 1
        versions = sorted({*split, *endpoints})
        spec = RoutingTableSpec(
            model=MODEL,
            targets=[self._target(version, split.get(version, 0)) for version in versions],
            previous=[self._target(version, share) for version, share in previous.items()],
            salt=rollout_id or "start",
            cause=Cause(actor="bench", reason="Bench", at="2026-01-01T00:00:00Z", rollout_id=rollout_id or None),
        )
        metadata = {"namespace": NAMESPACE, "name": MODEL, "uid": "bench", "resourceVersion": str(self.generation)}
        table = {
            "apiVersion": GROUP_VERSION,
            "kind": "RoutingTable",
            "metadata": {**metadata, "generation": self.generation},
            "spec": spec.to_wire(),
        }
        found = {
            f"{NAMESPACE}/{model_version_name(MODEL, version)}": [f"{_HOST}:{self.engines[name]}" for name in names]
            for version, names in endpoints.items()
        }
        fresh = self.folder / "routing.new"
        fresh.write_text(json.dumps({"tables": [table], "endpoints": found}))
        fresh.rename(self.folder / "routing.json")
        self.writes.append((time.time(), dict(split)))

    def obeyed(self) -> dict[str, int | None]:
        """The generation that each gateway says it obeys."""
        found: dict[str, int | None] = {}
        for name, port in self.admins.items():
            try:
                with urllib.request.urlopen(f"http://{_HOST}:{port}/routing/{NAMESPACE}/{MODEL}", timeout=2) as answer:
                    found[name] = json.load(answer).get("generation")
            except OSError:
                found[name] = None
        return found

    def _target(self, version: str, weight: int) -> Target:
        return Target.model_validate(
            {"version": version, "weight": weight, "digest": f"sha256:{version}", "slo": dict(self.slo_ms)}
        )


@contextmanager
def running(
    engines: Mapping[str, Engine],
    *,
    gateways: int,
    scrape_seconds: float,
    slo_ms: Mapping[str, int],
    prometheus: Path | None,
) -> Iterator[Platform]:
    """All of it, with these engines, whose version has all traffic; ended in order, and its folder removed."""
    binary = prometheus or Binaries(ConsoleProgress()).path(PROMETHEUS)
    folder = Path(tempfile.mkdtemp(prefix="tidewheel-bench-"))
    started: list[programs.Program] = []
    store: subprocess.Popen[bytes] | None = None
    names = [f"gateway-{number}" for number in range(gateways)]
    platform = Platform(
        folder=folder,
        gateways={name: _port() for name in names},
        admins={name: _port() for name in names},
        prometheus_url=f"http://{_HOST}:{(store_port := _port())}",
        slo_ms=slo_ms,
    )
    try:
        platform.start(engines)
        version = next(iter(engines.values())).version
        platform.route({version: 10_000}, endpoints={version: list(engines)}, previous={})
        for name in names:
            arguments = _gateway(platform, name)
            started.append(programs.start("gateway", arguments, log=folder / f"{name}.log"))
        store = _start_prometheus(binary, platform, port=store_port, scrape_seconds=scrape_seconds)
        for name, program in zip(names, started, strict=True):
            programs.wait_ready(program, port=platform.gateways[name], path="/readyz", timeout_seconds=300)
        yield platform
    finally:
        programs.stop(started, timeout_seconds=10)
        platform.stop_all()
        if store is not None:
            store.terminate()
            store.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def _engine(engine: Engine, port: int) -> list[str]:
    step = f"{engine.step_ms},{engine.prefill_token_ms},0.005"
    arguments = ["--model", "/tmp", "--runner", "simulated", "--host", _HOST, "--port", str(port)]
    arguments += ["--served-model-name", MODEL, "--step-time", step, "--reply-tokens", str(engine.reply_tokens)]
    arguments += ["--shutdown-timeout", "2", "--accept-after-sigterm", "0", "--log-level", "error"]
    return [*arguments, *(part for fault in engine.faults for part in ("--fault", fault))]


def _gateway(platform: Platform, name: str) -> list[str]:
    arguments = ["--host", _HOST, "--port", str(platform.gateways[name]), "--log-level", "error"]
    arguments += ["--admin-port", str(platform.admins[name]), "--namespace", NAMESPACE, "--no-access-log"]
    arguments += ["--static", str(platform.folder / "routing.json"), "--static-poll-seconds", "0.05"]
    return [*arguments, "--drain-timeout", "2", "--accept-after-sigterm", "0"]


def _start_prometheus(
    binary: Path, platform: Platform, *, port: int, scrape_seconds: float
) -> "subprocess.Popen[bytes]":
    interval = f"{scrape_seconds * 1000:.0f}ms"
    targets = [{"targets": [f"{_HOST}:{admin}"], "labels": {"pod": name}} for name, admin in platform.admins.items()]
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [{"job_name": "gateways", "honor_labels": True, "static_configs": targets}],
    }
    file = platform.folder / "prometheus.yml"
    file.write_text(json.dumps(config))  # JSON is YAML
    arguments = [f"--config.file={file}", f"--storage.tsdb.path={platform.folder / 'tsdb'}", "--log.level=error"]
    process = subprocess.Popen([str(binary), *arguments, f"--web.listen-address={_HOST}:{port}"])
    deadline = time.monotonic() + 60
    while not programs._answers(port, "/-/ready"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("Prometheus did not become ready")
        time.sleep(0.1)
    return process


def _port() -> int:
    port = programs.free_port()
    assert port is not None
    return port
