"""Models that answer from the simulated runner: real engine program, scheduler and sockets, no weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_API = "tidewheel.dev/v1alpha1"


@dataclass(frozen=True, slots=True)
class Model:
    """One model of a test; its name is its own, so tests do not meet."""

    name: str
    step_milliseconds: float = 5.0
    reply_tokens: int = 20
    drain_seconds: int = 60

    def version(
        self, version: str, *, replicas: int | None = 1, arguments: Sequence[str] = (), **spec: Any
    ) -> dict[str, Any]:
        """A ModelVersion; `spec` replaces whole parts of its spec."""
        engine_arguments = [
            "--runner", "simulated",
            "--step-time", f"{self.step_milliseconds},0.01,0.05",
            "--reply-tokens", str(self.reply_tokens),
            *arguments,
        ]  # fmt: skip
        body = {
            "model": self.name,
            "version": version,
            "artifact": {"uri": "file:///tmp"},  # any path that exists: the simulated runner loads nothing
            "engine": {"image": "tidewheel-engine:dev", "args": engine_arguments},
            "replica": {"cpu": "20m", "memory": "256Mi"},
            "drain": {"timeoutSeconds": self.drain_seconds},
            **({} if replicas is None else {"replicas": replicas}),
            **spec,
        }
        metadata = {"name": f"{self.name}-{version}"}
        return {"apiVersion": _API, "kind": "ModelVersion", "metadata": metadata, "spec": body}

    def rule(self, split: Mapping[str, int], **spec: Any) -> dict[str, Any]:
        traffic = [{"version": version, "percent": percent} for version, percent in split.items()]
        body = {"model": self.name, "traffic": traffic, **spec}
        return {"apiVersion": _API, "kind": "RoutingRule", "metadata": {"name": self.name}, "spec": body}
