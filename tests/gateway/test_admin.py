"""What the admin port says of routing."""

from tidewheel.gateway.admin import ready_replicas
from tidewheel.gateway.snapshot import Endpoint, ModelKey, Snapshot, VersionKey


def endpoint(uid: str, *, ready: bool = True, terminating: bool = False) -> Endpoint:
    return Endpoint(uid, "10.0.0.1", 8000, ready, terminating)


def test_replicas_that_would_take_requests_are_counted_by_version_of_that_model() -> None:
    snapshot = Snapshot(
        endpoints={
            VersionKey("shop", "chat", "v1"): (endpoint("a"), endpoint("b", ready=False)),
            VersionKey("shop", "chat", "v2"): (endpoint("c", terminating=True),),
            VersionKey("shop", "mini", "v1"): (endpoint("d"),),
            VersionKey("lab", "chat", "v1"): (endpoint("e"),),
        }
    )
    assert ready_replicas(snapshot, ModelKey("shop", "chat")) == {"v1": 1, "v2": 0}
    assert ready_replicas(Snapshot(), ModelKey("shop", "chat")) == {}
