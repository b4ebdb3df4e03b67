"""What the operator costs at rest: memory, CPU, and calls to the API server by verb.

A real etcd and kube-apiserver, the real operator with its default settings, ModelVersions with one replica each and a
rule per ten of them; pods are made ready by a stand-in for the kubelet. Calls are counted by a proxy between the
operator and the API server, so kopf's own are among them. At rest the only writes are renewals of the Lease.
"""

import argparse
import asyncio
import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.report import Report
from tests.faults.proxy import ApiProxy
from tests.operator.kubelet import Kubelet
from tests.operator.world import World, model_version

from tidewheel.cli.cluster.bare_control_plane import running_control_plane
from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.kubernetes import MODEL_VERSIONS, NAMESPACES, KubeClient, load_access
from tidewheel.clients.resources import Resource

CRD_FOLDER = Path(__file__).parents[1] / "crds"
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
VERSIONS_PER_MODEL = 10
DEFAULTS = {"lease_seconds": "15", "renew_deadline_seconds": "10", "lease_retry_seconds": "2", "list_seconds": "120"}
MORE_DEFAULTS = {"watch_silence_seconds": "20", "watch_restart_seconds": "1", "backoff_seconds": "0.2"}


async def measure(plane: ControlPlane, *, versions: int, seconds: float, folder: Path, report: Report) -> None:
    """Bring up ``versions`` versions, wait until nothing is written any more, and count for ``seconds``."""
    access = load_access(kubeconfig=plane.kubeconfig)
    namespace = f"bench-{secrets.token_hex(4)}"
    case = f"{versions}_modelversions"
    async with KubeClient(access, user_agent="bench") as client:
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": namespace}})
        with ApiProxy(access) as proxy, Kubelet(access, namespace) as kubelet:
            world = World(client=client, namespace=namespace, proxy=proxy, kubelet=kubelet, folder=folder)
            operator = world.start_operator(**DEFAULTS, **MORE_DEFAULTS)
            try:
                loop = asyncio.get_running_loop()
                began = loop.time()
                await _apply(world, versions)
                await _at_rest(world, versions)
                report.measure(case, "time_to_ready", loop.time() - began, "s")
                before, cpu = len(proxy.calls), _cpu_seconds(operator.pid)
                await asyncio.sleep(seconds)
                calls = Counter(f"{call.verb} {call.resource}" for call in proxy.calls[before:])
                minutes = seconds / 60
                report.measure(case, "resident_memory", _resident_mib(operator.pid), "MiB")
                report.measure(case, "cpu", (_cpu_seconds(operator.pid) - cpu) / seconds * 1000, "millicores")
                report.measure(case, "api_calls", calls.total() / minutes, "1/min")
                for call, count in sorted(calls.items()):
                    report.measure(case, f"api_calls {call}", count / minutes, "1/min")
            finally:
                world.stop_operators()


async def _apply(world: World, versions: int) -> None:
    for number in range(versions):
        model, version = f"m{number // VERSIONS_PER_MODEL}", f"v{number % VERSIONS_PER_MODEL}"
        body = model_version(world.namespace, version, model=model, replicas=1)
        await world.client.apply(MODEL_VERSIONS, body, force=True)
        if version == "v0":
            await world.apply_rule(model=model, v0=100)


async def _at_rest(world: World, versions: int) -> None:
    """Every version is ready, and nothing but the Lease was written for five seconds."""
    while True:
        found = await world.client.list(MODEL_VERSIONS, world.namespace)
        ready = sum(item.get("status", {}).get("readyReplicas", 0) for item in found.items)
        writes = len(world.proxy.seen())
        await asyncio.sleep(5)
        if ready == versions and len(world.proxy.seen()) == writes:
            return


def _resident_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _installed_plane() -> Iterator[ControlPlane]:
    with running_control_plane() as plane:
        files = [f"--filename={path}" for path in sorted(CRD_FOLDER.glob("*.yaml"))]
        plane.kubectl("apply", "--server-side", *files)
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield plane


def main() -> None:
    """Short form: 100 versions for a minute."""
    parser = argparse.ArgumentParser(prog="python -m bench.operator_footprint", description=__doc__)
    parser.add_argument("--versions", type=int, nargs="+", default=[100], help="ModelVersions (default: 100)")
    parser.add_argument("--seconds", type=float, default=60, help="how long to count at rest (default: 60)")
    parser.add_argument("--short", action="store_true", help="10 ModelVersions for 10 s")
    options = parser.parse_args()
    if options.short:
        options.versions, options.seconds = [10], 10.0
    report = Report("operator_footprint")
    with ExitStack() as stack:
        plane = stack.enter_context(_installed_plane())
        for versions in options.versions:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            asyncio.run(measure(plane, versions=versions, seconds=options.seconds, folder=folder, report=report))


if __name__ == "__main__":
    main()
