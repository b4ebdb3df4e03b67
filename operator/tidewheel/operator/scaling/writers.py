"""Who else sizes a version: two writers of one number fight, so the other one is named and we step back."""

from collections.abc import Iterable, Mapping

from tidewheel.clients.resources import KubeObject
from tidewheel.crds.names import GROUP


def other_writers(autoscalers: Iterable[KubeObject]) -> Mapping[tuple[str, str], str]:
    """(namespace, ModelVersion) -> the HorizontalPodAutoscaler that targets it, and whose it is."""
    found: dict[tuple[str, str], str] = {}
    for item in autoscalers:
        target = (item.get("spec") or {}).get("scaleTargetRef") or {}
        group = str(target.get("apiVersion", "")).partition("/")[0]
        if target.get("kind") != "ModelVersion" or group != GROUP:
            continue
        metadata = item["metadata"]
        owners = [f"{owner['kind']} {owner['name']}" for owner in metadata.get("ownerReferences") or ()]
        name = f"HorizontalPodAutoscaler {metadata['name']}"
        found[metadata["namespace"], str(target["name"])] = f"{name} of {owners[0]}" if owners else name
    return found
