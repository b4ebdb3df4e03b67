"""What must hold between the fields of an object, in CEL: the API server refuses the rest and says the way out.

What concerns one field alone stands beside the field, in its type.
"""

from typing import Final

from tidewheel.crds.base import validation


def _immutable(field: str, way_out: str) -> dict[str, str]:
    return validation(f"self.{field} == oldSelf.{field}", f"{field} is immutable; {way_out}", field=f".{field}")


MODEL_VERSION_RULES: Final = [
    validation(
        "self.metadata.name == self.spec.model + '-' + self.spec.version",
        "metadata.name must be <spec.model>-<spec.version>",
        message_expression="'metadata.name must be <spec.model>-<spec.version>, here '"
        " + self.spec.model + '-' + self.spec.version",
        field=".metadata.name",
    ),
]

MODEL_VERSION_SPEC_RULES: Final = [
    _immutable("model", "create another ModelVersion"),
    _immutable("version", "create another ModelVersion"),
    *(
        _immutable(field, "create another version and move traffic to it")
        for field in ("artifact", "engine", "replica")
    ),
    validation(
        "!(has(self.replicas) && has(self.scaling))",
        "replicas and scaling exclude each other; remove one",
        field=".replicas",
        reason="FieldValueForbidden",
    ),
    validation(
        "!has(self.scaling) || self.scaling.minReplicas <= self.scaling.maxReplicas",
        "scaling.minReplicas must not exceed scaling.maxReplicas; lower the one or raise the other",
        field=".scaling.minReplicas",
    ),
    validation(
        "!has(self.scaling) || !has(self.scaling.scaleToZero) || !self.scaling.scaleToZero"
        " || self.scaling.minReplicas == 0",
        "scaling.scaleToZero needs scaling.minReplicas 0; set that, or leave scaleToZero out",
        field=".scaling.scaleToZero",
    ),
    validation(
        "!has(self.scaling) || !has(self.scaling.events)"
        " || self.scaling.events.all(e, timestamp(e.start) < timestamp(e.end))",
        "every event of scaling.events must end after it starts",
        field=".scaling.events",
    ),
    validation(
        "!has(self.replica.pod.labels) || !self.replica.pod.labels.exists(k, k.startsWith('tidewheel.dev/'))",
        "labels under tidewheel.dev/ are set by the operator; remove them from replica.pod.labels",
        field=".replica.pod.labels",
        reason="FieldValueForbidden",
    ),
]

ROUTING_RULE_RULES: Final = [
    validation(
        "self.metadata.name == self.spec.model",
        "metadata.name must equal spec.model: there is one RoutingRule per model and namespace",
        message_expression="'metadata.name must equal spec.model, here ' + self.spec.model"
        " + ': there is one RoutingRule per model and namespace'",
        field=".metadata.name",
    ),
]

_PROGRESS: Final = (
    "self.rollout.steps.map(s, has(s.percent) ? s.percent * 100 : has(s.basisPoints) ? s.basisPoints : 0)"
)

ROUTING_RULE_SPEC_RULES: Final = [
    validation("self.model == oldSelf.model", "model is immutable; create another RoutingRule", field=".model"),
    validation(
        "self.traffic.map(t, t.percent).sum() == 100",
        "traffic percents must sum to 100",
        field=".traffic",
    ),
    validation(
        "!has(self.rollout.steps) || self.rollout.steps.all(s, has(s.percent) != has(s.basisPoints))",
        "each of rollout.steps must say either percent or basisPoints",
        field=".rollout.steps",
    ),
    validation(
        f"!has(self.rollout.steps) || ({_PROGRESS}.isSorted() && {_PROGRESS}.all(p, "
        f"{_PROGRESS}.exists_one(q, p == q)))",
        "rollout.steps must grow from one to the next; a rollout does not go back by itself",
        field=".rollout.steps",
    ),
    validation(
        "!has(self.rollout.judge) || !has(self.rollout.judge.blockSeconds) || !has(self.rollout.judge.scrapeSeconds)"
        " || self.rollout.judge.blockSeconds >= 4.0 * self.rollout.judge.scrapeSeconds",
        "rollout.judge.blockSeconds must be at least four times scrapeSeconds",
        field=".rollout.judge",
    ),
]

ROUTING_TABLE_RULES: Final = [
    validation(
        "self.metadata.name == self.spec.model",
        "metadata.name must equal spec.model",
        message_expression="'metadata.name must equal spec.model, here ' + self.spec.model",
        field=".metadata.name",
    ),
]

ROUTING_TABLE_SPEC_RULES: Final = [
    validation("self.model == oldSelf.model", "model is immutable; create another RoutingTable", field=".model"),
    *(
        validation(
            f"{guard}self.{field}.map(t, t.weight).sum() == 10000",
            f"weights of {field} must sum to 10000 basis points",
            field=f".{field}",
        )
        for field, guard in (("targets", ""), ("previous", "!has(self.previous) || self.previous.size() == 0 || "))
    ),
]
