"""Prompts that are too long for the version that the split chose go to one that declares room for them."""

from collections.abc import Callable

from tidewheel.gateway.snapshot import Table


def version_with_room(table: Table, version: str, *, need: int, is_ready: Callable[[str], bool]) -> str:
    """The same version if it has room, or if no other has; else the smallest that does.

    A pool for long prompts may carry no weight. A version that was rejected is never chosen.
    """
    chosen = table.targets.get(version)
    if chosen is None or chosen.max_model_len >= need:
        return version
    rejected = {entry.digest for entry in table.spec.rejected}
    roomy = [
        target
        for target in table.spec.targets
        if target.max_model_len >= need and target.digest not in rejected and is_ready(target.version)
    ]
    best = min(roomy, key=lambda target: (target.weight == 0, target.max_model_len, target.version), default=None)
    return version if best is None else best.version
