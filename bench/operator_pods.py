"""One operator and very many pods: `python -m bench.operator_pods [--pods 5000] [--short]`.

A local cluster whose simulated nodes (KWOK) run the pods: they have phases and addresses, and answer no HTTP. The
operator is the real program with its default settings, beside the cluster. Printed: time from the first ModelVersion to
all replicas ready, reconcile durations, memory and CPU, and calls to the API server at rest, by verb and resource. Give
two sizes (`--pods 500 5000`) to see which calls grow with pods: none may.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.report import Report
from prometheus_client.parser import text_string_to_metric_families

from tidewheel.cli.cluster.addresses import free_ports
from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.settings import ClusterSettings

CRD_FOLDER = Path(__file__).parents[1] / "crds"
NAMESPACE, SYSTEM = "pods", "tidewheel-system"
PODS_OF_A_NODE = 200
REPLICAS = 50
"""Of a version; each is a model of its own."""
POLL_SECONDS = 2.0
Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def versions(count: int) -> list[dict[str, object]]:
    """ModelVersions of ``count`` pods together, and a rule for each."""
    found: list[dict[str, object]] = []
    api = "tidewheel.dev/v1alpha1"
    overlay = {
        "nodeSelector": {"type": "kwok"},
        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
    }
    for number, first in enumerate(range(0, count, REPLICAS)):
        model = f"m{number}"
        spec = {
            "model": model,
            "version": "v1",
            "artifact": {"uri": "file:///tmp"},
            "engine": {"image": "tidewheel-engine:dev"},
            "replica": {"cpu": "20m", "memory": "64Mi", "pod": overlay},
            "replicas": min(REPLICAS, count - first),
        }
        found.append({"apiVersion": api, "kind": "ModelVersion", "metadata": {"name": f"{model}-v1"}, "spec": spec})
        rule = {"model": model, "traffic": [{"version": "v1", "percent": 100}]}
        found.append({"apiVersion": api, "kind": "RoutingRule", "metadata": {"name": model}, "spec": rule})
    return found


def measure(cluster: LocalCluster, *, pods: int, seconds: float, limit_seconds: float, report: Report) -> None:
    """From zero to ``pods`` ready ones, and then nothing for ``seconds``."""
    case = f"{pods} pods"
    with _operator(cluster) as (pid, port):
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": versions(pods)})
        began = time.monotonic()
        cluster.kubectl("apply", "--server-side", f"--namespace={NAMESPACE}", "--filename=-", stdin=body)
        _await_ready(cluster, pods, began + limit_seconds)
        report.measure(case, "converge_from_zero", time.monotonic() - began, "s")
        _await_rest(port, began + limit_seconds)
        before, cpu = _scrape(port), _cpu_seconds(pid)
        report.measure(case, "reconciles", _sum(before, "tidewheel_reconcile_seconds_count"), "count")
        for share in (0.5, 0.99):
            edge, is_above = _quantile(before, share)
            words = "above" if is_above else "at_most"
            report.measure(case, f"reconcile_p{share * 100:g}_{words}", edge, "s")
        time.sleep(seconds)
        after = _scrape(port)
        minutes = seconds / 60
        report.measure(case, "resident_memory", _resident_mib(pid), "MiB")
        report.measure(case, "cpu_at_rest", (_cpu_seconds(pid) - cpu) / seconds * 1000, "millicores")
        calls = _calls(after)
        calls.subtract(_calls(before))
        report.measure(case, "api_calls_at_rest", calls.total() / minutes, "1/min")
        for name, count in sorted(calls.items()):
            if count:
                report.measure(case, f"api_calls_at_rest {name}", count / minutes, "1/min")


@contextlib.contextmanager
def _operator(cluster: LocalCluster) -> Iterator[tuple[int, int]]:
    """Its pid and the port of its metrics; the log is shown where it ends by itself."""
    [port] = free_ports(1)
    command = [
        sys.executable, "-m", "tidewheel.operator", f"--kubeconfig={cluster.kubeconfig}", f"--namespace={SYSTEM}",
        f"--serving-namespaces={NAMESPACE}", "--host=127.0.0.1", f"--port={port}", "--log-level=WARNING",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process.pid, port
        finally:
            if process.poll() is not None:
                log.seek(0)
                print(log.read().decode()[-4000:], file=sys.stderr)
            process.terminate()


def _await_ready(cluster: LocalCluster, pods: int, deadline: float) -> None:
    path = f"--namespace={NAMESPACE}"
    while True:
        text = cluster.kubectl("get", "modelversions", path, "--output=jsonpath={.items[*].status.readyReplicas}")
        ready = sum(int(part) for part in text.split())
        if ready == pods:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"{ready} of {pods} replicas were ready at the limit; give more with --limit-seconds")
        time.sleep(POLL_SECONDS)


def _await_rest(port: int, deadline: float) -> None:
    """Until nothing but the Lease was written for three looks."""
    quiet, before = 0, -1
    while quiet < 3:
        calls = _calls(_scrape(port)).items()
        writes = sum(count for name, count in calls if not name.startswith("GET") and not name.endswith(" leases"))
        quiet, before = (quiet + 1 if writes == before else 0), writes
        if time.monotonic() > deadline:
            raise SystemExit(f"the operator never comes to rest: {dict(calls)}")
        time.sleep(POLL_SECONDS)


def _scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _sum(samples: Samples, name: str) -> float:
    return sum(value for (found, _), value in samples.items() if found == name)


def _calls(samples: Samples) -> Counter[str]:
    calls: Counter[str] = Counter()
    for (name, labels), value in samples.items():
        if name == "tidewheel_api_calls_total":
            known = dict(labels)
            calls[f"{known['verb']} {known['resource']}"] += int(value)
    return calls


def _quantile(samples: Samples, share: float) -> tuple[float, bool]:
    """Upper edge of the bucket that holds it; the last edge, and True, where it is above that."""
    buckets = sorted(
        (float(dict(labels)["le"]), value)
        for (name, labels), value in samples.items()
        if name == "tidewheel_reconcile_seconds_bucket"
    )
    index = next(index for index, (_, count) in enumerate(buckets) if count >= share * buckets[-1][1])
    is_above = math.isinf(buckets[index][0])
    return buckets[index - is_above][0], is_above


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Each size on a cluster of its own."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.operator_pods", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, nargs="+", default=[5_000], help="pods in all (default: 5000)")
    parser.add_argument("--seconds", type=float, default=120, help="how long to count at rest (default: 120)")
    parser.add_argument("--limit-seconds", type=float, default=1_800, help="longest time to converge (default: 1800)")
    parser.add_argument("--short", action="store_true", help="100 pods, 30 s at rest")
    options = parser.parse_args()
    if options.short:
        options.pods, options.seconds = [100], 30.0
    report = Report("operator_pods")
    for pods in options.pods:
        nodes = -(-pods // PODS_OF_A_NODE)
        with LocalCluster(ClusterSettings(name=f"pods-{os.getpid() % 10_000}", kwok_nodes=nodes, dns=False)) as cluster:
            files = [f"--filename={path}" for path in sorted(CRD_FOLDER.glob("*.yaml"))]
            cluster.kubectl("apply", "--server-side", *files)
            cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
            for namespace in (NAMESPACE, SYSTEM):
                cluster.kubectl("create", "namespace", namespace)
            measure(cluster, pods=pods, seconds=options.seconds, limit_seconds=options.limit_seconds, report=report)


if __name__ == "__main__":
    main()
