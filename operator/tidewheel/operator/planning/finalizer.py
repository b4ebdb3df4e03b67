"""The one thing we write to a user's object: a finalizer that holds a deleted version while it serves."""

from collections.abc import Iterable, Sequence

from tidewheel.crds.names import IN_SERVICE_FINALIZER
from tidewheel.operator.planning.actions import Action, AddFinalizer, Chain, RemoveFinalizer
from tidewheel.operator.planning.records import PodRecord, VersionRecord


def plan_finalizer(
    version: VersionRecord, *, in_service: bool, pods: Sequence[PodRecord], has_service: bool
) -> tuple[Action, ...]:
    """Held from first sight; released when nothing is left to protect.

    Pods that are terminating have been drained: one that a vanished node will never confirm does not hold the version.
    """
    name = version.meta.name
    held = IN_SERVICE_FINALIZER in version.meta.finalizers
    if version.meta.deleting is None:
        return () if held else (AddFinalizer(version=version, message=f"hold {name} while it is in service"),)
    gone = not has_service and all(pod.is_terminating for pod in pods)
    if held and not in_service and gone:
        return (RemoveFinalizer(version=version, message=f"{name} is out of service and may go"),)
    return ()


def release_all(versions: Iterable[VersionRecord]) -> list[Chain]:
    """In a namespace that is being deleted nothing can be protected: its pods go by their own grace."""
    return [
        Chain(
            version.version,
            (RemoveFinalizer(version=version, message=f"the namespace of {version.meta.name} is being deleted"),),
        )
        for version in versions
        if version.meta.deleting is not None and IN_SERVICE_FINALIZER in version.meta.finalizers
    ]
