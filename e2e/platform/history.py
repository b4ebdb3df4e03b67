"""What a RoutingTable has been, watched: a poll would miss what lasted for less than its pause."""

from __future__ import annotations

import threading
from typing import Any, Self

import urllib3
from e2e.platform.installation import SERVING_NAMESPACE, Installation
from e2e.platform.models import Model
from kubernetes import client as official
from kubernetes import config as official_config
from kubernetes import watch

_LONGEST_SECONDS = 1800


class SplitHistory:
    """Of one model, by Kubernetes' own client. Use as a context manager; the table must exist."""

    def __init__(self, installation: Installation, model: Model) -> None:
        self.tables: list[dict[str, Any]] = []
        """Every state of the table so far, in order."""
        self._api = official.CustomObjectsApi(
            official_config.new_client_from_config(str(installation.cluster.kubeconfig))
        )
        self._model = model
        self._begun, self._over = threading.Event(), threading.Event()
        # It ends with the cluster, or with its next event after the block.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._watch = watch.Watch()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(60), f"the table of {self._model.name} cannot be watched"
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.stop()

    def _run(self) -> None:
        try:
            self._follow()
        except urllib3.exceptions.HTTPError:
            if not self._over.is_set():
                raise

    def _follow(self) -> None:
        stream = self._watch.stream(
            self._api.list_namespaced_custom_object,
            "tidewheel.dev",
            "v1alpha1",
            SERVING_NAMESPACE,
            "routingtables",
            field_selector=f"metadata.name={self._model.name}",
            timeout_seconds=_LONGEST_SECONDS,
        )
        for event in stream:
            self.tables.append(event["object"])
            self._begun.set()

    def shares(self, version: str) -> list[int]:
        """The version's share in basis points, state by state."""
        return [
            sum(target["weight"] for target in table["spec"]["targets"] if target["version"] == version)
            for table in list(self.tables)
        ]
