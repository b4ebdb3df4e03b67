"""The demo, stage by stage. Each stage does one thing that a person would do, and shows what came of it."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from tidewheel.cli.chat.conversation import Reply, stream_reply
from tidewheel.cli.chat.endpoint import GATEWAY_SERVICE, Endpoint
from tidewheel.cli.cluster.host_mounts import compile_kernels
from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.local_images import REDIS_VALUES
from tidewheel.cli.cluster.progress import ConsoleProgress, Stage
from tidewheel.cli.cluster.settings import ClusterSettings
from tidewheel.cli.demo import traffic
from tidewheel.cli.demo.judging import Judged, follow_rollout
from tidewheel.cli.demo.launching import follow
from tidewheel.cli.errors import CliError
from tidewheel.clients.kubernetes import KubeClient, load_access

RELEASE: Final = "tidewheel"
RELEASE_NAMESPACE: Final = "tidewheel-system"
NAMESPACE: Final = "default"
MODEL: Final = "chat"
_CHECKOUT: Final = Path(__file__).parents[4]
_QUESTION: Final = "Why do tides follow the moon?"
_STAGES: Final = 8
_AFTER_ROLLBACK: Final = 50
_SETTLE_SECONDS: Final = 1.0
_SCRAPE_SECONDS: Final = 2
"""Judging is made of scrapes: half a minute instead of two."""
_JUDGE_SECONDS: Final = 120.0
_JUDGED_LINES: Final = 16


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What a person may choose."""

    name: str
    keep: bool
    requests: int
    timeout_seconds: float


class Demo:
    """One run. The cluster goes down whatever happens, unless it is to be kept."""

    def __init__(self, settings: DemoSettings) -> None:
        self.settings = settings
        self.console = Console(highlight=False, soft_wrap=True)
        self.progress = ConsoleProgress(self.console)
        wanted = ClusterSettings(name=settings.name, prometheus=True, scrape_interval_seconds=_SCRAPE_SECONDS)
        self.cluster = LocalCluster(wanted, progress=self.progress)
        self.started = time.monotonic()

    def run(self) -> None:
        """Everything, in order."""
        chart, examples = _checkout("charts/tidewheel"), _checkout("examples")
        try:
            self._title(1, "a Kubernetes cluster on this machine")
            self._start_afresh()
            self._title(2, "Tidewheel from its Helm chart")
            self._install(chart)
            self._title(3, "kubectl apply -f examples/chat.yaml")
            self._apply(examples / "chat.yaml", {"v1": 100})
            endpoint = self._endpoint()
            self._title(4, f"a reply, token by token, through the gateway's Service {endpoint.url}")
            self._stream(endpoint)
            self._title(5, "kubectl apply -f examples/chat-v2.yaml: a second version for 10 % of conversations")
            self._apply(examples / "chat-v2.yaml", {"v1": 90, "v2": 10})
            self._measure(endpoint, {"v1": 90, "v2": 10})
            self._title(6, "kubectl rollback chat, under traffic")
            self._roll_back(endpoint)
            self._title(7, "kubectl apply -f examples/chat-v3.yaml: a slow version, in steps that a judge must clear")
            self._judge(endpoint, examples / "chat-v3.yaml")
        finally:
            self._finish()

    def _title(self, number: int, text: str) -> None:
        self.console.print(f"\n[bold]{number}/{_STAGES} {text}[/]")

    def _say(self, text: str) -> None:
        self.console.print(f"  {text}", markup=False)

    def _start_afresh(self) -> None:
        """A story begins on an empty cluster: what an earlier run kept, or left when it was killed, goes first."""
        with self.progress.stage("the engine's C++ kernels (once)", usually_seconds=6):
            shortcoming = compile_kernels()
        if shortcoming:
            self._say(shortcoming)
        if self.cluster.folder.root.exists():
            with self.progress.stage(f"removing the cluster {self.settings.name} of an earlier run", usually_seconds=3):
                self.cluster.down()
        self.cluster.up()

    def _install(self, chart: Path) -> None:
        values = (
            f"prometheus.url={self.cluster.status().prometheus}",
            f"prometheus.scrapeIntervalSeconds={_SCRAPE_SECONDS}",
        )
        flags = [part for value in values for part in ("--set", value)]
        with self.progress.stage("helm install", usually_seconds=2):
            place = ("--namespace", RELEASE_NAMESPACE, "--create-namespace")
            self.cluster.helm("install", RELEASE, str(chart), *place, *REDIS_VALUES, *flags)
        with self.progress.stage("two operators and two gateways get ready", usually_seconds=12) as stage:
            self._await_deployments(stage)

    def _await_deployments(self, stage: Stage) -> None:
        deadline = time.monotonic() + self.settings.timeout_seconds
        while True:
            found = json.loads(self.cluster.kubectl("get", "deployments", "-n", RELEASE_NAMESPACE, "-o", "json"))
            ready = {
                item["metadata"]["name"]: (item.get("status", {}).get("readyReplicas", 0), item["spec"]["replicas"])
                for item in found["items"]
            }
            stage.update(", ".join(f"{name} {have} of {want}" for name, (have, want) in ready.items()))
            if ready and all(have >= want for have, want in ready.values()):
                return
            if time.monotonic() > deadline:
                raise CliError(
                    f"{ready} after {self.settings.timeout_seconds:.0f} s: kubectl get pods -n {RELEASE_NAMESPACE}"
                )
            time.sleep(0.5)

    def _apply(self, path: Path, wanted: Mapping[str, int]) -> None:
        self._say(self.cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(path)).strip().replace("\n", "\n  "))
        with self.progress.stage("until its share of traffic is in force", usually_seconds=25):
            asyncio.run(self._follow(wanted))

    async def _follow(self, wanted: Mapping[str, int]) -> None:
        access = load_access(kubeconfig=self.cluster.kubeconfig)
        async with KubeClient(access, user_agent="tidewheel-demo") as client:
            await follow(
                client,
                namespace=NAMESPACE,
                model=MODEL,
                wanted=wanted,
                say=self._say,
                timeout_seconds=self.settings.timeout_seconds,
            )

    def _endpoint(self) -> Endpoint:
        """The Service's own address: kube-proxy makes it reachable from this host as from any node."""
        service = json.loads(
            self.cluster.kubectl("get", "service", GATEWAY_SERVICE, "-n", RELEASE_NAMESPACE, "-o", "json")
        )
        return Endpoint(f"http://{service['spec']['clusterIP']}")

    def _stream(self, endpoint: Endpoint) -> None:
        self._say(f"> {_QUESTION}\n")
        reply = Reply()
        body = {"model": MODEL, "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 60}
        for piece in stream_reply(endpoint, body, conversation_id="demo", reply=reply):
            self.console.print(piece, end="", markup=False, soft_wrap=True)
        self.console.print(f"\n\n  [dim]{reply.summary()}[/]")

    def _measure(self, endpoint: Endpoint, wanted: Mapping[str, int]) -> None:
        count = self.settings.requests
        with self.progress.stage(f"{count} requests, each a conversation of its own", usually_seconds=15) as stage:
            served = traffic.ask_many(endpoint, MODEL, count, progress=stage.update)
        answers = traffic.observed(served)
        for version, percent in wanted.items():
            low, high = traffic.binomial_band(count, percent / 100)
            share = 100 * answers[version] / count
            chance = f"by chance alone {low} to {high} in 999 of 1,000 cases"
            self._say(f"{version}: {answers[version]} of {count} = {share:.1f} %, wanted {percent} % ({chance})")
        _require_no_failure(served)

    def _roll_back(self, endpoint: Endpoint) -> None:
        with traffic.SteadyTraffic(endpoint, MODEL) as steady:
            time.sleep(_SETTLE_SECONDS)  # the rollback is to meet traffic on its way
            began = time.monotonic()
            said = self._kubectl_rollback()
            time.sleep(_SETTLE_SECONDS)  # stragglers would show now
        self._say(said.strip().replace("\n", "\n  "))
        late = [request.sent_at - began for request in steady.served if request.version == "v2"]
        last = max([0.0, *late]) * 1000
        self._say(f"{len(steady.served)} requests meanwhile; the last one to v2 was sent {last:.0f} ms after Enter")
        _require_no_failure(steady.served)
        self._require_all_to_v1(endpoint)

    def _judge(self, endpoint: Endpoint, path: Path) -> None:
        """v3 is caught in its first step: its requests are slow, and nobody has to notice."""
        with traffic.SteadyTraffic(endpoint, MODEL, lines=_JUDGED_LINES) as steady:
            self._say(self.cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(path)).strip().replace("\n", "\n  "))
            with self.progress.stage("until the judge has seen enough", usually_seconds=25):
                judged = asyncio.run(self._follow_rollout("v3"))
        exposed = traffic.observed(steady.served)["v3"]
        self._say(f"the judge: {judged.sentence}")
        self._say(f"v3 had traffic for {judged.seconds:.1f} s: {exposed} of {len(steady.served)} requests met it")
        _require_no_failure(steady.served)
        if not judged.outcome:
            self._say("not decided in time, as on a machine too busy to be measured: without evidence nothing moves on")
            return
        if judged.outcome != "Rejected":
            raise CliError(f"v3 is slow and should have been rejected; its rollout ended as {judged.outcome}")
        self._require_all_to_v1(endpoint)

    async def _follow_rollout(self, canary: str) -> Judged:
        async with KubeClient(load_access(kubeconfig=self.cluster.kubeconfig), user_agent="tidewheel-demo") as client:
            return await follow_rollout(
                client,
                namespace=NAMESPACE,
                model=MODEL,
                canary=canary,
                say=self._say,
                start_seconds=self.settings.timeout_seconds,
                judge_seconds=_JUDGE_SECONDS,
            )

    def _require_all_to_v1(self, endpoint: Endpoint) -> None:
        with self.progress.stage(f"{_AFTER_ROLLBACK} new conversations", usually_seconds=3) as stage:
            served = traffic.ask_many(endpoint, MODEL, _AFTER_ROLLBACK, progress=stage.update)
        answers = traffic.observed(served)
        self._say(f"new requests: {', '.join(f'{v} {n} of {len(served)}' for v, n in answers.items())}")
        _require_no_failure(served)
        if set(answers) != {"v1"}:
            raise CliError("after the rollback every request should go to v1")

    def _kubectl_rollback(self) -> str:
        """The plugin as kubectl finds it: on PATH."""
        kubectl = self.cluster.binaries.path("kubectl")
        search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        done = subprocess.run(
            [kubectl, "rollback", MODEL, "--reason", "the demo says so"],
            env={**os.environ, "PATH": search, "KUBECONFIG": str(self.cluster.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise CliError(f"kubectl rollback {MODEL} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def _finish(self) -> None:
        if self.settings.keep:
            self._say_what_next()
            return
        self._title(_STAGES, "everything goes again")
        with self.progress.stage("taking the cluster down", usually_seconds=5):
            self.cluster.down()
        self._say(f"done in {time.monotonic() - self.started:.0f} s")

    def _say_what_next(self) -> None:
        programs = [Path(sys.executable).parent, self.cluster.binaries.path("kubectl").parent]
        text = _NEXT.format(
            kubeconfig=self.cluster.kubeconfig,
            programs=os.pathsep.join(str(folder) for folder in programs),
            name=self.settings.name,
        )
        self.console.print(text, markup=False)


_NEXT: Final = """
The cluster stays up. Next:

  export KUBECONFIG={kubeconfig}
  export PATH={programs}:$PATH
  tidewheel status                             # versions, the split, who rolled back and why
  tidewheel why chat                           # what the judge saw in v3
  tidewheel chat --kubeconfig $KUBECONFIG      # talk to it
  kubectl get mv,rr,rt                         # the objects themselves
  kubectl rollback chat --to v2                # forward again, by hand
  kubectl scale mv chat-v1 --replicas 2        # one more replica

  tidewheel cluster down --name {name}         # the end of it
"""


def _checkout(part: str) -> Path:
    path = _CHECKOUT / part
    if not path.exists():
        raise CliError(f"the demo needs a checkout of Tidewheel: {path} is not there")
    return path


def _require_no_failure(served: list[traffic.Served]) -> None:
    problems = [request.problem for request in served if request.problem]
    if problems:
        raise CliError(f"{len(problems)} of {len(served)} requests failed, the first with: {problems[0]}")
