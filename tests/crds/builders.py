"""Objects that are good, to be broken one field at a time."""

import copy
from collections.abc import Callable
from typing import Any

from tidewheel.crds.names import GROUP_VERSION

Json = dict[str, Any]
Break = Callable[[Json], object]

DIGEST = "sha256:" + "0" * 64


def model_version(name: str = "chat-v1", namespace: str = "default", **spec: Any) -> Json:
    """The least a ModelVersion needs."""
    model, version = name.rsplit("-", 1)
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "ModelVersion",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": model,
            "version": version,
            "artifact": {"uri": "file:///models/chat.gguf"},
            "engine": {"image": "tidewheel:dev"},
            **spec,
        },
    }


def routing_rule(name: str = "chat", namespace: str = "default", **shares: int) -> Json:
    """A rule with these shares; all to v1 if none are given."""
    traffic = [{"version": version, "percent": percent} for version, percent in (shares or {"v1": 100}).items()]
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "RoutingRule",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": name, "traffic": traffic},
    }


def routing_table(name: str = "chat", namespace: str = "default", **weights: int) -> Json:
    """A table with these weights; all to v1 if none are given."""
    targets = [
        {"version": version, "weight": weight, "digest": DIGEST}
        for version, weight in (weights or {"v1": 10_000}).items()
    ]
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "RoutingTable",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": name,
            "targets": targets,
            "cause": {"actor": "test", "reason": "RuleApplied", "at": "2026-01-01T00:00:00Z"},
        },
    }


def with_(path: str, value: Any) -> Break:
    """Sets what is at ``path``, such as ``spec.traffic.0.percent``, making objects on the way."""

    def apply(body: Json) -> None:
        *parents, last = path.split(".")
        at: Any = body
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        if isinstance(at, list):
            at[int(last)] = value
        else:
            at[last] = value

    return apply


def without(path: str) -> Break:
    """Removes what is at ``path``."""

    def apply(body: Json) -> None:
        *parents, last = path.split(".")
        at: Any = body
        for part in parents:
            at = at[part]
        del at[last]

    return apply


def broken(body: Json, *breaks: Break) -> Json:
    """A copy with the changes made."""
    changed = copy.deepcopy(body)
    for change in breaks:
        change(changed)
    return changed
