"""A node's notice as a file: `python -m tidewheel.operator.spot_notice --file PATH --node NAME`.

For nodes whose provider says that they will go by a metadata file or a hook that can write one, and where no handler
sets a taint. One of these per node: while the file is there and not empty the node has the taint
``tidewheel.dev/spot-notice``, and the operator drains its replicas.
"""

import argparse
import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tidewheel.clients.access import load_access
from tidewheel.clients.errors import ApiError
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.logs import configure_logging
from tidewheel.clients.resources import NODES
from tidewheel.operator.scaling.nodes import NOTICE_TAINT

_LOG: Final = logging.getLogger(__name__)
EFFECT: Final = "NoSchedule"


def taints_with(taints: Sequence[Mapping[str, Any]], *, notice: bool) -> list[Mapping[str, Any]] | None:
    """What a node's taints should be; None where they are so already. Those of others stay."""
    if any(taint.get("key") == NOTICE_TAINT for taint in taints) is notice:
        return None
    others = [taint for taint in taints if taint.get("key") != NOTICE_TAINT]
    return [*others, {"key": NOTICE_TAINT, "effect": EFFECT}] if notice else others


def has_notice(file: Path) -> bool:
    """A file that is there and says something; one that cannot be read says nothing."""
    try:
        return file.stat().st_size > 0
    except OSError:
        return False


async def follow(client: KubeClient, *, node: str, file: Path, poll_seconds: float) -> None:
    """For ever: the node's taint is as the file says. What fails is tried again."""
    while True:
        try:
            await follow_once(client, node=node, file=file)
        except ApiError as error:
            _LOG.warning("node %s cannot be marked: %s", node, error)
        await asyncio.sleep(poll_seconds)


async def follow_once(client: KubeClient, *, node: str, file: Path) -> None:
    """One look. Raises ApiError; a Conflict where another writer was first."""
    found = await client.get(NODES, node)
    notice = has_notice(file)
    taints = taints_with((found.get("spec") or {}).get("taints") or (), notice=notice)
    if taints is None:
        return
    version = found["metadata"]["resourceVersion"]
    await client.patch_merge(NODES, node, None, {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}})
    _LOG.info("node %s %s", node, f"will go: {file} says so" if notice else "stays: the notice is gone")


def main() -> None:
    """Runs until it is ended."""
    parser = argparse.ArgumentParser(
        prog="python -m tidewheel.operator.spot_notice",
        description="Taints its node with tidewheel.dev/spot-notice while a file says that the node will go.",
    )
    parser.add_argument("--file", type=Path, required=True, help="there and not empty: the node will go")
    parser.add_argument("--node", default=os.environ.get("NODE_NAME"), help="name of the node (default: $NODE_NAME)")
    parser.add_argument("--poll-seconds", type=float, default=1.0, help="pause between looks (default: 1)")
    options = parser.parse_args()
    if not options.node:
        parser.error("--node or $NODE_NAME must name the node")
    configure_logging()
    asyncio.run(_run(options.node, options.file, options.poll_seconds))


async def _run(node: str, file: Path, poll_seconds: float) -> None:
    async with KubeClient(load_access(), user_agent="tidewheel-spot-notice") as client:
        await follow(client, node=node, file=file, poll_seconds=poll_seconds)


if __name__ == "__main__":
    main()
