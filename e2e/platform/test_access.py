"""Engines obey who shows the token, whatever the network lets through."""

from __future__ import annotations

import json

from e2e.platform.installation import Installation
from e2e.platform.models import Model

_ASK = """
import urllib.error, urllib.request
for method, path in {paths!r}:
    body = b"{{}}" if method == "POST" else None
    request = urllib.request.Request("http://{address}:8000" + path, method=method, data=body)
    try:
        print(path, urllib.request.urlopen(request, timeout=5).status)
    except urllib.error.HTTPError as error:
        print(path, error.code)
"""
_GUARDED = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/load"),
    ("GET", "/tokenizer"),
    ("POST", "/drain"),
    ("POST", "/abort/any"),
]
_OPEN = [("GET", "/health"), ("GET", "/ready"), ("GET", "/metrics")]


async def test_a_foreign_pod_without_the_token_gets_401_from_an_engine(tidewheel: Installation) -> None:
    model = Model("guarded")
    await tidewheel.serve(model, {"v1": 100})
    (engine,) = tidewheel.pods(model)
    code = _ASK.format(paths=_GUARDED + _OPEN, address=engine["status"]["podIP"])
    tidewheel.kubectl("apply", "--filename=-", stdin=_foreign_pod(code))
    tidewheel.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/foreigner", "--timeout=60s")
    answers = dict(line.split() for line in tidewheel.kubectl("logs", "foreigner").splitlines())
    assert answers == {path: "401" for _, path in _GUARDED} | {path: "200" for _, path in _OPEN}


def _foreign_pod(code: str) -> str:
    container = {"name": "main", "image": "tidewheel-engine:dev", "command": ["python", "-c", code]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreigner"}, "spec": spec})
