"""The CustomResourceDefinitions of our kinds: names, columns, subresources and rules around the types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.crds.base import MODEL_NAME_LENGTH, VERSION_NAME_LENGTH, Record
from tidewheel.crds.modelversion import ModelVersionSpec, ModelVersionStatus
from tidewheel.crds.names import API_VERSION, GROUP
from tidewheel.crds.routingrule import RoutingRuleSpec, RoutingRuleStatus
from tidewheel.crds.routingtable import RoutingTableSpec
from tidewheel.crds.rules import (
    MODEL_VERSION_RULES,
    MODEL_VERSION_SPEC_RULES,
    ROUTING_RULE_RULES,
    ROUTING_RULE_SPEC_RULES,
    ROUTING_TABLE_RULES,
    ROUTING_TABLE_SPEC_RULES,
)
from tidewheel.crds.schema import JsonSchema, structural_schema


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``; ``wide`` ones are shown with ``-o wide`` only."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False

    def to_wire(self) -> dict[str, Any]:
        """As the CRD spells it."""
        entry = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.description}
        return {**entry, "priority": 1} if self.wide else entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One kind."""

    kind: str
    plural: str
    short_name: str
    description: str
    name_length: int
    spec: type[Record]
    spec_rules: Sequence[dict[str, str]]
    rules: Sequence[dict[str, str]]
    columns: Sequence[Column]
    status: type[Record] | None = None
    scalable: bool = False

    @property
    def file_name(self) -> str:
        """Name of the generated file."""
        return f"{GROUP}_{self.plural}.yaml"


UNSEEN_STATUS: Final = {"observedGeneration": -1}
"""Of an object that nobody has looked at: without any, kstatus would take it for finished (flux2#4346)."""
_AGE: Final = Column("Age", ".metadata.creationTimestamp", "Time since the object was created.", type="date")
_READY_REASON: Final = Column(
    "Reason", '.status.conditions[?(@.type=="Ready")].reason', "Reason of the Ready condition.", wide=True
)
_READY_MESSAGE: Final = Column(
    "Message", '.status.conditions[?(@.type=="Ready")].message', "What is so, and the way out.", wide=True
)

DEFINITIONS: Final = (
    Definition(
        kind="ModelVersion",
        plural="modelversions",
        short_name="mv",
        description="What to run: one version of a model, the artefact and the shape of its replicas. It takes traffic "
        "only when a RoutingRule names it.",
        name_length=MODEL_NAME_LENGTH + 1 + VERSION_NAME_LENGTH,
        spec=ModelVersionSpec,
        spec_rules=MODEL_VERSION_SPEC_RULES,
        rules=MODEL_VERSION_RULES,
        status=ModelVersionStatus,
        scalable=True,
        columns=(
            Column("Phase", ".status.phase", "Idle, Loading, Ready, Canary, Stable or Retired."),
            Column("Ready", ".status.ready", "Ready replicas of desired ones."),
            Column("Forecast", ".status.forecastReplicas", "Replicas needed at now + lead.", type="integer"),
            Column("Lead", ".status.scaling.leadSeconds", "Seconds looked ahead.", type="integer", wide=True),
            Column("Binding", ".status.scaling.binding", "What sets the size.", wide=True),
            Column("Desired", ".status.desiredReplicas", "Replicas wanted now.", type="integer", wide=True),
            Column("Draining", ".status.drainingReplicas", "Replicas that leave.", type="integer", wide=True),
            _READY_REASON,
            _READY_MESSAGE,
            _AGE,
        ),
    ),
    Definition(
        kind="RoutingRule",
        plural="routingrules",
        short_name="rr",
        description="Where requests for a model should go: the split wanted between its versions.",
        name_length=MODEL_NAME_LENGTH,
        spec=RoutingRuleSpec,
        spec_rules=ROUTING_RULE_SPEC_RULES,
        rules=ROUTING_RULE_RULES,
        status=RoutingRuleStatus,
        columns=(
            Column("Traffic", ".status.split", "The split in force."),
            Column("Step", ".status.rollout.progress", "Step of steps, or how the last rollout ended."),
            Column("Verdict", ".status.rollout.verdict", "What the judge said last."),
            Column("InStep", ".status.rollout.stepStartedAt", "Time since the step began.", type="date", wide=True),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status', "Whether it is the split wanted."),
            _READY_REASON,
            _READY_MESSAGE,
            _AGE,
        ),
    ),
    Definition(
        kind="RoutingTable",
        plural="routingtables",
        short_name="rt",
        description="Where requests for a model go now. Internal: written by the operator and by `kubectl rollback`, "
        "obeyed by the gateways. Keep it out of Git.",
        name_length=MODEL_NAME_LENGTH,
        spec=RoutingTableSpec,
        spec_rules=ROUTING_TABLE_SPEC_RULES,
        rules=ROUTING_TABLE_RULES,
        columns=(
            Column("Generation", ".metadata.generation", "The number that gateways confirm.", type="integer"),
            Column("Cause", ".spec.cause.reason", "Why the split was written."),
            Column("Actor", ".spec.cause.actor", "Who wrote it."),
            Column("Since", ".spec.cause.at", "When it was written.", type="date"),
            Column("Message", ".spec.cause.message", "The cause in a sentence.", wide=True),
            _AGE,
        ),
    ),
)


def custom_resource_definition(definition: Definition) -> dict[str, Any]:
    """The CRD object."""
    version: dict[str, Any] = {
        "name": API_VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [column.to_wire() for column in definition.columns],
        "schema": {"openAPIV3Schema": _object_schema(definition)},
    }
    if definition.status is not None:
        version["subresources"] = {"status": {}}
        if definition.scalable:
            version["subresources"]["scale"] = {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.kind.lower(),
                "shortNames": [definition.short_name],
                "categories": ["all", "tidewheel"],
            },
            "versions": [version],
        },
    }


def _object_schema(definition: Definition) -> JsonSchema:
    spec = structural_schema(definition.spec, with_defaults=True)
    spec["x-kubernetes-validations"] = list(definition.spec_rules)
    properties: JsonSchema = {
        "apiVersion": {"type": "string", "description": f"{GROUP}/{API_VERSION}."},
        "kind": {"type": "string", "description": f"{definition.kind}."},
        "metadata": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": definition.name_length}},
        },
        "spec": spec,
    }
    if definition.status is not None:
        properties["status"] = structural_schema(definition.status, with_defaults=False) | {"default": UNSEEN_STATUS}
    return {
        "type": "object",
        "description": definition.description,
        "required": ["spec"],
        "properties": properties,
        "x-kubernetes-validations": list(definition.rules),
    }
