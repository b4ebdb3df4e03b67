"""The replica table of DESIGN section 6, row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.autoscaler.replicas import VersionNeeds, share_size, wanted_replicas

ROWS = {
    "weight: replicas": (VersionNeeds(replicas=3, weight=9_000, named=True), 3),
    "weight: never below one, whatever the spec says": (VersionNeeds(replicas=0, weight=100, named=True), 1),
    "weight: minReplicas": (VersionNeeds(min_replicas=2, max_replicas=8, weight=100, named=True), 2),
    "weight: nothing said": (VersionNeeds(weight=10_000, named=True), 1),
    "weight: a rule that is gone changes nothing": (VersionNeeds(replicas=3, weight=9_000), 3),
    "growing arm": (VersionNeeds(replicas=2, growing_to=100, named=True), 2),
    "growing arm of a version that idled": (VersionNeeds(growing_to=100, named=True), 1),
    "base of a move: never fewer than it has": (
        VersionNeeds(replicas=1, weight=9_000, present=4, move_pending=True),
        4,
    ),
    "no move pending: shrinks": (VersionNeeds(replicas=1, weight=9_000, present=4), 1),
    "kept warm: what it had": (VersionNeeds(replicas=0, warm_weight=10_000, present=3), 3),
    "kept warm: enough for its share": (VersionNeeds(replicas=4, warm_weight=5_000), 4),
    "kept warm, scaling: enough for its share": (VersionNeeds(min_replicas=4, max_replicas=9, warm_weight=5_000), 2),
    "named at 0 %: replicas": (VersionNeeds(replicas=2, named=True), 2),
    "named at 0 %: minReplicas": (VersionNeeds(min_replicas=2, max_replicas=9, named=True), 2),
    "named at 0 %: nothing said": (VersionNeeds(named=True), 0),
    "named nowhere: replicas": (VersionNeeds(replicas=2), 2),
    "named nowhere, scaling: idle": (VersionNeeds(min_replicas=2, max_replicas=9), 0),
    "named nowhere: idle": (VersionNeeds(), 0),
    "onCapacity Replace: as many as its share needs": (
        VersionNeeds(replicas=4, weight=7_500, named=True, replaced=True),
        3,
    ),
    "onCapacity Replace: the share it grows to": (
        VersionNeeds(replicas=4, weight=100, growing_to=5_000, replaced=True),
        2,
    ),
    "onCapacity Replace: nothing is kept warm": (
        VersionNeeds(replicas=4, warm_weight=9_000, named=True, replaced=True),
        0,
    ),
    "maxReplicas bounds minReplicas": (VersionNeeds(min_replicas=5, max_replicas=3, weight=1, named=True), 3),
}


@pytest.mark.parametrize(("needs", "count"), ROWS.values(), ids=ROWS)
def test_rows(needs: VersionNeeds, count: int) -> None:
    found = wanted_replicas(needs)
    assert found.count == count
    assert found.reason


@pytest.mark.parametrize(("share", "count"), [(1, 1), (2_501, 1), (2_502, 2), (5_000, 2), (10_000, 4)])
def test_a_share_asks_for_its_part_of_the_full_size_and_for_one_at_least(share: int, count: int) -> None:
    assert share_size(VersionNeeds(replicas=4), share) == count


@given(
    replicas=st.none() | st.integers(0, 50),
    weight=st.integers(0, 10_000),
    growing=st.integers(0, 10_000),
    warm=st.integers(0, 10_000),
    present=st.integers(0, 50),
    pending=st.booleans(),
)
def test_whoever_takes_or_took_traffic_keeps_a_replica_and_a_pending_move_takes_none(
    replicas: int | None, weight: int, growing: int, warm: int, present: int, pending: bool
) -> None:
    needs = VersionNeeds(
        replicas=replicas, weight=weight, growing_to=growing, warm_weight=warm, present=present, move_pending=pending
    )
    count = wanted_replicas(needs).count
    if weight or growing or warm:
        assert count >= 1
    if warm or (weight and pending):
        assert count >= present
    assert count >= (replicas or 0)
