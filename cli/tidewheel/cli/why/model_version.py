"""A ModelVersion explained: its replicas, and every condition in the operator's words."""

from collections.abc import Sequence

from tidewheel.cli.rollout.connection import Connection
from tidewheel.cli.why.scaling import scaling_lines
from tidewheel.clients.kubernetes import MODEL_VERSIONS
from tidewheel.clients.resources import KubeObject


async def explain_version(connection: Connection, name: str) -> Sequence[str] | None:
    """Lines for people; None where there is no such version."""
    found = await connection.find(MODEL_VERSIONS, name)
    return None if found is None else version_lines(found)


def version_lines(version: KubeObject) -> list[str]:
    """What the status says, without leaving anything out that a person could act on. Pure."""
    metadata, status = version["metadata"], version.get("status") or {}
    replicas = f"{status.get('readyReplicas', 0)} of {status.get('desiredReplicas', 0)} replicas ready"
    if status.get("drainingReplicas"):
        replicas += f", {status['drainingReplicas']} leaving"
    lines = [f"{metadata['namespace']}/{metadata['name']}  {status.get('phase', 'not looked at yet')}  {replicas}"]
    lines += scaling_lines(status)
    lines += [
        f" {entry['type']} {entry['status']}: {entry.get('message') or entry['reason']}"
        for entry in status.get("conditions", ())
    ]
    return lines
