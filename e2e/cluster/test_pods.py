"""What every pod on the cluster can count on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from e2e.cluster.pods import await_phase, create, field, output_of, run_in

from tidewheel.cli.cluster.images import write_archive
from tidewheel.cli.cluster.local_images import program_image
from tidewheel.cli.cluster.providers import Cluster


def test_a_pod_runs_the_code_of_this_checkout_unprivileged(cluster: Cluster, namespace: str) -> None:
    import tidewheel.engine

    code = "import os, torch, tidewheel.engine as e; print(os.getuid(), e.__file__, os.listdir('/models/smollm2'))"
    uid, path, weights = output_of(cluster, namespace, code).split(maxsplit=2)
    assert (uid, path) == ("65532", tidewheel.engine.__file__)
    assert ".gguf" in weights


def test_a_pod_reaches_the_api_server_by_name_with_its_own_identity(cluster: Cluster, namespace: str) -> None:
    code = """
import os, ssl, urllib.request
place = "/var/run/secrets/kubernetes.io/serviceaccount/"
url = "https://kubernetes.default.svc/apis/authentication.k8s.io/v1/selfsubjectreviews"
body = b'{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}'
headers = {"Authorization": "Bearer " + open(place + "token").read(), "Content-Type": "application/json"}
request = urllib.request.Request(url, data=body, headers=headers)
context = ssl.create_default_context(cafile=place + "ca.crt")
print(urllib.request.urlopen(request, context=context, timeout=5).read().decode())
"""
    answer = json.loads(output_of(cluster, namespace, code))
    assert answer["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"


def test_pods_get_distinct_gpus_and_wait_when_none_is_left(cluster: Cluster, namespace: str) -> None:
    nodes = cluster.kubectl("get", "nodes", "--output=jsonpath={.items[*].status.allocatable.nvidia\\.com/gpu}")
    total = sum(map(int, nodes.split()))
    fitting = [f"pod-{number}" for number in range(total // 4)]
    for name in [*fitting, "too-many"]:
        create(cluster, namespace, name, "sleep", "600", gpus=4)
        if name in fitting:
            await_phase(cluster, namespace, name)
    waiting = "--for=condition=PodScheduled=false"
    cluster.kubectl("wait", f"--namespace={namespace}", waiting, "pod/too-many", "--timeout=30s")
    given = [
        (field(cluster, namespace, name, "spec.nodeName"), gpu)
        for name in fitting
        for gpu in run_in(cluster, namespace, name, "printenv", "NVIDIA_VISIBLE_DEVICES").split(",")
    ]
    assert len(set(given)) == len(given) == total
    cluster.kubectl("delete", f"--namespace={namespace}", "pod", "--all")


def test_a_service_reaches_pods_of_every_node_from_pods_and_from_here(cluster: Cluster, namespace: str) -> None:
    """Asking through a node that does not run the pod needs the answer to come back through that node."""
    listing = cluster.kubectl("get", "nodes", "--selector=type!=kwok", "--output=jsonpath={.items[*].metadata.name}")
    names = [f"web-{number}" for number, _ in enumerate(listing.split())]
    for name, node in zip(names, listing.split(), strict=True):
        code = f"""
from http.server import BaseHTTPRequestHandler, HTTPServer
class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{name}")
HTTPServer(("", 8000), Hello).serve_forever()
"""
        create(cluster, namespace, name, "python", "-c", code, labels={"web": "yes"}, nodeName=node)
    await_phase(cluster, namespace, *names)
    cluster.kubectl("create", "service", "clusterip", "web", "--tcp=80:8000", f"--namespace={namespace}")
    cluster.kubectl("set", "selector", "service", "web", "web=yes", f"--namespace={namespace}")
    ask = """
import time, urllib.request
seen, deadline = set(), time.time() + 30
while len(seen) < WANTED and time.time() < deadline:
    try:
        seen.add(urllib.request.urlopen("http://web", timeout=2).read().decode())
    except OSError:
        time.sleep(0.1)
print(*sorted(seen))
""".replace("WANTED", str(len(names)))
    assert run_in(cluster, namespace, names[0], "python", "-c", ask).split() == names


def test_an_image_archive_can_be_loaded(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    image = replace(
        program_image("engine"), name="localhost/of-mine:7", entrypoint=["/usr/bin/printf", "from my image"]
    )
    cluster.load_image(write_archive(image, tmp_path / "image.tar"))
    create(cluster, namespace, "mine", image="localhost/of-mine:7")
    await_phase(cluster, namespace, "mine", phase="Succeeded")
    assert cluster.kubectl("logs", f"--namespace={namespace}", "mine") == "from my image"
