"""Who may write: the Lease on fake monotonic clocks that have nothing in common."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidewheel.operator.leading.lease import LeaseSettings, LeaseState, LeaseView, Step

SETTINGS = LeaseSettings(identity="a", lease_seconds=15, renew_deadline_seconds=10, retry_seconds=2)


def view(holder: str, renewed: str = "1", *, transitions: int = 0, seconds: float = 15) -> LeaseView:
    return LeaseView(holder, renewed, transitions, renewed, seconds)


def test_without_a_lease_one_is_created() -> None:
    state = LeaseState(SETTINGS)
    assert state.next_step(0) is Step.WAIT, "nothing is known yet"
    state.observe(None, 0)
    assert state.next_step(0) is Step.CREATE
    state.written(view("a"), sent_at=0)
    assert state.holds(9.9)
    assert not state.holds(10)


def test_a_lease_of_another_is_taken_only_after_it_was_seen_unchanged_for_its_whole_duration() -> None:
    state = LeaseState(SETTINGS)
    state.observe(view("b", "1"), 100)
    assert state.next_step(114.9) is Step.WAIT
    state.observe(view("b", "2"), 114.9)
    assert state.next_step(129.8) is Step.WAIT, "it was renewed"
    state.observe(view("b", "2"), 129.9)
    assert state.next_step(130) is Step.WRITE
    assert state.next_transitions() == 1


def test_the_longer_of_both_durations_counts() -> None:
    state = LeaseState(SETTINGS)
    state.observe(view("b", seconds=60), 0)
    assert state.next_step(59) is Step.WAIT
    assert state.next_step(60) is Step.WRITE


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    state = LeaseState(SETTINGS)
    state.observe(view(""), 0)
    assert state.next_step(0) is Step.WRITE


def test_leadership_counts_from_before_the_request_was_sent() -> None:
    state = LeaseState(SETTINGS)
    state.observe(None, 0)
    state.written(view("a"), sent_at=3)
    assert not state.holds(13)


def test_leadership_ends_when_another_holder_is_seen() -> None:
    state = LeaseState(SETTINGS)
    state.written(view("a"), sent_at=0)
    state.observe(view("b", "2"), 1)
    assert not state.holds(1)


def test_a_renewal_whose_answer_was_lost_does_not_prolong_our_trust() -> None:
    state = LeaseState(SETTINGS)
    state.written(view("a", "1"), sent_at=0)
    state.observe(view("a", "2"), 8)
    assert state.holds(9)
    assert not state.holds(10)
    assert state.next_step(10) is Step.WRITE, "it is still ours to renew"


class TwoOperators(RuleBasedStateMachine):
    """Two operators on one record, clocks with different origins, writes that race, answers that are lost."""

    @initialize(offset=st.floats(-1e6, 1e6))
    def begin(self, offset: float) -> None:
        self.now = 0.0
        self.offsets = {"a": 0.0, "b": offset}
        self.record: LeaseView | None = None
        self.writes = 0
        self.states = {name: LeaseState(LeaseSettings(identity=name)) for name in ("a", "b")}

    def clock(self, name: str) -> float:
        return self.now + self.offsets[name]

    @rule(seconds=st.floats(0.1, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from(["a", "b"]))
    def reads(self, name: str) -> None:
        self.states[name].observe(self.record, self.clock(name))

    @rule(name=st.sampled_from(["a", "b"]), takes=st.floats(0, 5), lost=st.booleans())
    def writes_if_it_may(self, name: str, takes: float, lost: bool) -> None:
        state = self.states[name]
        step = state.next_step(self.clock(name))
        if step is Step.WAIT:
            return
        sent_at = self.clock(name)
        self.now += takes
        current = None if step is Step.CREATE else state.seen
        if self.record != current:
            return  # refused: the precondition does not hold
        self.writes += 1
        self.record = LeaseView(name, str(self.writes), state.next_transitions(), str(self.writes), 15)
        if not lost:
            state.written(self.record, sent_at=sent_at)

    @invariant()
    def at_most_one_may_write(self) -> None:
        if hasattr(self, "states"):
            assert sum(state.holds(self.clock(name)) for name, state in self.states.items()) <= 1


TestTwoOperators = TwoOperators.TestCase
TestTwoOperators.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
