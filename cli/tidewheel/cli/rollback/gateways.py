"""Asks each gateway pod, through the API server, which generation of a table it obeys."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tidewheel.cli.rollback.api_server import ApiServer
from tidewheel.clients.errors import ApiError
from tidewheel.clients.resources import PODS, KubeObject

GATEWAY_SELECTOR: Final = "app.kubernetes.io/name=tidewheel,app.kubernetes.io/component=gateway"
ADMIN_PORT: Final = 9090
_POLL_SECONDS: Final = 0.02
_QUESTIONS_PER_SECOND: Final = 100
_ANSWER_SECONDS: Final = 2.0
_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway pod."""

    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """``ms`` from the accepted write until this gateway said that it obeys, or None and the ``problem``."""

    pod: str
    ms: float | None
    problem: str = ""


def find_gateways(api: ApiServer, namespace: str) -> list[Gateway]:
    """The gateway pods that run and are not about to go."""
    pods = api.get(PODS.path(namespace=namespace), params=f"?labelSelector={quote(GATEWAY_SELECTOR)}")
    return [
        Gateway(namespace, pod["metadata"]["name"])
        for pod in pods["items"]
        if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    ]


def find_ready_versions(api: ApiServer, gateways: Sequence[Gateway], table: KubeObject) -> set[str]:
    """Versions of which some gateway knows a ready replica; empty when none answers."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = threads.map(lambda gateway: _routing(api, gateway, table), gateways)
    counts = [answer["ready"].items() for answer in answers if isinstance(answer, dict) and "ready" in answer]
    return {version for versions in counts for version, replicas in versions if replicas}


def await_generation(
    api: ApiServer, gateways: Sequence[Gateway], table: KubeObject, *, since: float, timeout_seconds: float
) -> list[Confirmation]:
    """Asks all gateways again and again until each obeys ``table`` or the time is over; ``since`` is monotonic."""
    # Many gateways are asked less often, so that the API server sees the same load.
    pause = max(_POLL_SECONDS, len(gateways) / _QUESTIONS_PER_SECOND)
    until = since + timeout_seconds
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(lambda g: _ask(api, g, table, since=since, until=until, pause=pause), gateways))


def _ask(
    api: ApiServer, gateway: Gateway, table: KubeObject, *, since: float, until: float, pause: float
) -> Confirmation:
    while True:
        problem = _problem(_routing(api, gateway, table), table)
        now = time.monotonic()
        if problem is None:
            return Confirmation(gateway.pod, round((now - since) * 1000, 1))
        if now + pause > until:
            return Confirmation(gateway.pod, None, problem)
        time.sleep(pause)


def _routing(api: ApiServer, gateway: Gateway, table: KubeObject) -> dict[str, Any] | str:
    """What a gateway says it obeys for the model of ``table``, or why it said nothing."""
    metadata = table["metadata"]
    path = (
        f"{PODS.path(namespace=gateway.namespace)}/{quote(gateway.pod)}:{ADMIN_PORT}/proxy"
        f"/routing/{quote(metadata['namespace'])}/{quote(metadata['name'])}"
    )
    try:
        answer = api.request("GET", path, timeout_seconds=_ANSWER_SECONDS)
    except ApiError as error:
        return str(error)
    if answer.status != 200:
        return f"it answered {answer.status}: {answer.body[:200].decode('utf-8', 'replace').strip()}"
    try:
        routing = json.loads(answer.body)
    except ValueError:
        routing = None
    return routing if isinstance(routing, dict) else f"its answer is not understood: {answer.body[:100]!r}"


def _problem(routing: dict[str, Any] | str, table: KubeObject) -> str | None:
    if isinstance(routing, str):
        return routing
    if routing.get("uid") != table["metadata"]["uid"]:
        return f"it obeys another table of that name (uid {routing.get('uid')})"
    generation = routing.get("generation")
    if not isinstance(generation, int) or generation < table["metadata"]["generation"]:
        return f"it still obeys generation {generation}"
    return None
