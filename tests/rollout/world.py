"""A model of all that the step machine meets: a table, gateways, replicas, people, and an operator that dies."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tidewheel.crds.rolloutchoices import OnCapacity
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.machine.decisions import decide
from tidewheel.rollout.machine.policy import RolloutPolicy, Step
from tidewheel.rollout.machine.situation import (
    Control,
    Decision,
    RejectedDigest,
    Situation,
    TableFacts,
    Transition,
    VersionFacts,
)
from tidewheel.rollout.machine.splits import normal
from tidewheel.rollout.machine.state import RolloutState, from_json, to_json
from tidewheel.rollout.quality.scoring import QualityKind, QualityVerdict

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
STEPS = (Step(100), Step(500), Step(2500), Step(5000), Step(10_000))
POLICY = RolloutPolicy(steps=STEPS, bake_seconds=600)
BLOCK = 30.0


class OperatorDiedError(Exception):
    """Injected between two writes."""


@dataclass
class World:
    """Everything persisted is here as the API server would have it; the operator keeps nothing in memory."""

    policy: RolloutPolicy = POLICY
    now: datetime = START
    goal: dict[str, int] = field(default_factory=lambda: {"v42": 10_000})
    generation: int = 1
    answered: int = 1
    table: TableFacts | None = field(default_factory=lambda: TableFacts(split={"v42": 10_000}, generation=1))
    stored: dict[str, object] | None = None
    versions: dict[str, VersionFacts] = field(
        default_factory=lambda: {
            name: VersionFacts(digest=f"sha256:{name}", ready=10) for name in ("v42", "v43", "v44")
        }
    )
    gateways: dict[str, int | None] = field(default_factory=lambda: {"a": 1, "b": 1})
    gateways_follow: bool = True
    paused: bool = False
    on_capacity: OnCapacity = OnCapacity.SURGE
    gpus_free: int | None = None
    kind: VerdictKind | None = VerdictKind.CLEAR
    verdict: Verdict | None = None
    quality: QualityKind | None = None
    """What the shadow prompts say when they are asked."""
    die_after_table: bool = False
    events: list[Transition] = field(default_factory=list)
    splits: list[dict[str, int]] = field(default_factory=list)
    rollouts: int = 0
    last: Decision | None = None
    log: list[tuple[RolloutState | None, Decision, Verdict | None]] = field(default_factory=list)

    def want(self, **percent: int) -> None:
        """Somebody edits spec.traffic."""
        self.goal = {version: share * 100 for version, share in percent.items()}
        self.generation += 1

    @property
    def state(self) -> RolloutState | None:
        """As it would be read back from status.rollout."""
        return from_json(self.stored) if self.stored is not None else None

    @property
    def split(self) -> dict[str, int]:
        """In force."""
        return normal(self.table.split) if self.table is not None else {}

    def look(self) -> Decision:
        """One reconcile: decide, write the table, then the status; possibly dying in between."""
        self.rollouts += 1
        before = self.state
        decision = decide(
            Situation(
                now=self.now,
                goal=self.goal,
                policy=self.policy,
                versions=self.versions,
                need=lambda _, share: max(1, -(-share * 10 // 10_000)),
                table=self.table,
                answered=self.answered == self.generation,
                paused=self.paused,
                confirmed=self.gateways,
                verdict=self.verdict,
                quality=self._shadow(),
                on_capacity=self.on_capacity,
                gpus_free=self.gpus_free,
                new_rollout_id=f"r{self.rollouts}",
            ),
            before,
        )
        self.last = decision
        self.log = [*self.log[-20:], (before, decision, self.verdict)]
        self._write_table(decision)
        if self.die_after_table:
            self.die_after_table = False
            raise OperatorDiedError
        self.stored = to_json(decision.state) if decision.state is not None else None
        self.events.extend(decision.events)
        return decision

    def tick(self, seconds: float = BLOCK) -> Decision:
        """Time passes, gateways follow the table, the judge judges, the operator looks."""
        self.now += timedelta(seconds=seconds)
        self.judge(seconds)
        decision = self.look()
        for _ in range(4):
            if decision.wake_at is None or decision.wake_at > self.now:
                break
            self._follow()
            decision = self.look()
        self._follow()
        return decision

    def judge(self, seconds: float = BLOCK) -> None:
        """A verdict about the step that is being judged, if there is one."""
        context = self.last.judge if self.last is not None else None
        if context is None or self.kind is None:
            self.verdict = None
            return
        end = self.now.timestamp()
        verdict = Verdict(
            rollout_id=context.rollout_id, step=context.step, at=end, kind=self.kind, reason="Test", message="said so"
        )
        begin = max(end - seconds, context.confirmed_at)
        self.verdict = verdict if verdict.stops_clock else replace(verdict, credit=(begin, end))

    def until_finished(self, limit: int = 400) -> RolloutState:
        """Tick until the rollout has ended."""
        for _ in range(limit):
            self.tick()
            state = self.state
            if state is not None and state.is_finished and self.answered == self.generation:
                return state
        raise AssertionError(f"still {self.state} after {limit} looks")

    def until(self, version: str, share: int, limit: int = 200) -> None:
        """Tick until the version has that share, confirmed."""
        for _ in range(limit):
            self.tick()
            if self.split.get(version, 0) == share and self.last is not None and self.last.judge is not None:
                return
        raise AssertionError(f"{version} never got {share}: {self.split}, {self.last}")

    def person_sets(self, split: Mapping[str, int], *, rejects: str | None = None, actor: str = "ada") -> None:
        """`kubectl rollback`: one write of the table, without the operator."""
        assert self.table is not None
        rejected = self.table.rejected
        if rejects is not None:
            rejected = (*rejected, RejectedDigest(self.versions[rejects].digest, rejects, "rolled back by hand"))
        self.table = replace(
            self.table,
            split=dict(split),
            previous=self.table.split,
            by_person=True,
            actor=actor,
            rejected=rejected,
            generation=self.table.generation + 1,
        )

    def control(self, **wishes: object) -> None:
        """`tidewheel pause|resume|promote|retry`."""
        assert self.table is not None
        state = self.state
        control = Control(rollout_id=state.id if state is not None else "", actor="ada", **wishes)  # type: ignore[arg-type]
        self.table = replace(self.table, control=control, generation=self.table.generation + 1)

    def _shadow(self) -> QualityVerdict | None:
        """Asked at the last look, answered at this one."""
        state = self.state
        if self.quality is None or state is None or self.last is None or not self.last.ask_quality:
            return None
        return QualityVerdict(rollout_id=state.id, kind=self.quality, message="20 shadow prompts: said so")

    def _write_table(self, decision: Decision) -> None:
        table = self.table
        if decision.answered:
            self.answered = self.generation
        if table is None:
            table = TableFacts(split={}, generation=0)
        rejected = table.rejected
        if decision.unreject is not None:
            rejected = tuple(entry for entry in rejected if entry.digest != decision.unreject)
        if decision.reject is not None:
            rejected = (*rejected, decision.reject)
        if decision.split is None and rejected == table.rejected:
            return
        state = decision.state
        moved = {}
        if decision.split is not None:
            self.splits.append(normal(decision.split))
            moved = {
                "split": dict(decision.split),
                "previous": state.start if state is not None else {},
                "rollout_id": state.id if state is not None else "",
                "by_person": False,
                "actor": "tidewheel-operator",
            }
        self.table = replace(table, **moved, rejected=rejected, generation=table.generation + 1)  # type: ignore[arg-type]

    def _follow(self) -> None:
        if self.gateways_follow and self.table is not None:
            self.gateways = dict.fromkeys(self.gateways, self.table.generation)
