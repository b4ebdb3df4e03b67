"""Prometheus finds Tidewheel's pods by their labels and leaves their own labels alone."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from typing import Any

from e2e.cluster.pods import await_phase, create

from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.waiting import wait_until

_METRICS = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Metrics(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Type", "text/plain"); self.end_headers()
        self.wfile.write(b'example_total{namespace="of-the-model",version="v9"} 7\\nplain_total 8\\n')
HTTPServer(("", 8000), Metrics).serve_forever()
"""


def test_pods_are_found_by_label_and_samples_keep_their_labels(local_cluster: LocalCluster, namespace: str) -> None:
    engine = {
        "app.kubernetes.io/managed-by": "tidewheel",
        "tidewheel.dev/model": "chat",
        "tidewheel.dev/version": "v1",
    }
    gateway = {"app.kubernetes.io/name": "tidewheel"}
    create(local_cluster, namespace, "engine", "python", "-c", _METRICS, labels=engine, ports={"http": 8000})
    create(local_cluster, namespace, "gateway", "python", "-c", _METRICS, labels=gateway, ports={"admin": 8000})
    create(local_cluster, namespace, "stranger", "python", "-c", _METRICS, ports={"http": 8000})
    await_phase(local_cluster, namespace, "engine", "gateway", "stranger")
    wait_until(
        lambda: {"engine", "gateway"} <= {series["pod"] for series in query(local_cluster, "plain_total")},
        what="first samples",
        timeout_seconds=60,
    )
    pods = {series["pod"]: series for series in query(local_cluster, "plain_total")}
    assert "stranger" not in pods
    assert (pods["engine"]["model"], pods["engine"]["version"]) == ("chat", "v1")
    assert pods["engine"]["namespace"] == namespace
    own = {series["namespace"] for series in query(local_cluster, 'example_total{version="v9"}')}
    assert own == {"of-the-model"}


def query(cluster: LocalCluster, expression: str) -> list[dict[str, str]]:
    """Labels of the series an expression has now."""
    url = f"{cluster.status().prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(url, timeout=5) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return [series["metric"] for series in result]
