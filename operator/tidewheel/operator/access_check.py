"""Which verbs we need, from rbac.yaml beside this file, and which of them we lack."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.resources import SELF_SUBJECT_ACCESS_REVIEWS

RULES_FILE: Final = Path(__file__).with_name("rbac.yaml")


class Need(NamedTuple):
    """One verb on one resource, in the namespaces that we serve or in that of the Lease."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}"


def needs(section: str) -> list[Need]:
    """The needs of one section of the rules file: ``serving`` or ``own``."""
    rules: list[dict[str, Any]] = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))[section]
    return [
        Need(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


async def missing_access(client: KubeClient, *, serving_namespaces: Sequence[str], own_namespace: str) -> list[str]:
    """What the API server would refuse, in words for the person who grants roles. Raises ApiError."""
    asked = [(need, namespace) for namespace in serving_namespaces or ("",) for need in needs("serving")]
    asked += [(need, own_namespace) for need in needs("own")]
    answers = await asyncio.gather(*(_allowed(client, need, namespace) for need, namespace in asked))
    return [
        f"{need} in {namespace or 'all namespaces'}"
        for (need, namespace), allowed in zip(asked, answers, strict=True)
        if not allowed
    ]


async def _allowed(client: KubeClient, need: Need, namespace: str) -> bool:
    resource, _, subresource = need.resource.partition("/")
    attributes = {"group": need.group, "resource": resource, "verb": need.verb, "namespace": namespace}
    if subresource:
        attributes["subresource"] = subresource
    review = {
        "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create(SELF_SUBJECT_ACCESS_REVIEWS, review)
    return bool(answer["status"].get("allowed"))
