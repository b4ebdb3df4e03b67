"""Nodes that have given notice: a taint or a condition that some provider or drainer sets before it takes a node."""

from collections.abc import Iterable
from typing import Final

from tidewheel.clients.resources import KubeObject

NOTICE_TAINT: Final = "tidewheel.dev/spot-notice"
"""Ours: `tidewheel.operator.spot_notice` sets it where a file says so, or a hook of yours."""
NOTICE_TAINTS: Final = frozenset(
    {
        NOTICE_TAINT,
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/scheduled-maintenance",
        "cloud.google.com/impending-node-termination",
        "karpenter.sh/disrupted",
        "remediator.kubernetes.azure.com/unschedulable",
        "ToBeDeletedByClusterAutoscaler",
    }
)
"""Keys that are set minutes before a node goes."""
NOTICE_CONDITIONS: Final = frozenset({"SpotInterruption", "TerminationScheduled", "PreemptScheduled"})


def leaving_nodes(nodes: Iterable[KubeObject]) -> frozenset[str]:
    """Names of the nodes that have given notice."""
    return frozenset(node["metadata"]["name"] for node in nodes if _leaves(node))


def _leaves(node: KubeObject) -> bool:
    taints = (node.get("spec") or {}).get("taints") or ()
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(taint.get("key") in NOTICE_TAINTS for taint in taints) or any(
        entry.get("type") in NOTICE_CONDITIONS and entry.get("status") == "True" for entry in conditions
    )
