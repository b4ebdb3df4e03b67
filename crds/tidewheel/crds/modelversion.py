"""ModelVersion: what to run."""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from tidewheel.crds.base import (
    MAXIMUM_REPLICAS,
    Digest,
    ModelName,
    Record,
    VersionName,
    list_map,
    matches,
    obeys,
)
from tidewheel.crds.conditions import Condition
from tidewheel.crds.scaling import Scaling
from tidewheel.crds.scalingstatus import CapacityStatus, ColdStartStatus, ScalingStatus

_QUANTITY: Final = r"^([0-9]+(\.[0-9]+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
_URI: Final = r"^(file:///[^/].*|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/.*)$"
_SHA256: Final = r"^[0-9a-f]{64}$"
_EXTENDED_RESOURCE: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"


def _spelled(value: Any) -> Any:
    """A whole number may be written without quotes, as everywhere in Kubernetes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_spelled),
    Field(
        min_length=1,
        max_length=20,
        pattern=_QUANTITY,
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            **obeys(
                "type(self) == int ? self > 0 : "
                f"self.matches(r'{_QUANTITY}') && quantity(self).isGreaterThan(quantity('0'))",
                "must be a Kubernetes quantity above zero, such as 500m, 2 or 64Gi",
            ),
        },
    ),
]


def _as_in_pods(**required: int) -> dict[str, Any]:
    """JSON schema of an object that is passed on to the pod; of its fields only the required strings are known here.

    Each of them has a length; what is wrong beyond that, the API server says when the pod is created.
    """
    schema: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
    if required:
        schema["required"] = list(required)
        schema["properties"] = {
            name: {"type": "string", "minLength": 1, "maxLength": length, "description": f"{name}, as in a Pod."}
            for name, length in required.items()
        }
    return schema


PodObject = Annotated[dict[str, Any], Field(max_length=32, json_schema_extra=_as_in_pods())]
NamedPodObject = Annotated[dict[str, Any], Field(max_length=32, json_schema_extra=_as_in_pods(name=253))]
MountObject = Annotated[dict[str, Any], Field(max_length=32, json_schema_extra=_as_in_pods(name=63, mountPath=1024))]
SpreadObject = Annotated[
    dict[str, Any], Field(max_length=32, json_schema_extra=_as_in_pods(topologyKey=317, whenUnsatisfiable=32))
]


class Artifact(Record):
    """Where the weights are, and how to know that they are the right ones."""

    uri: Annotated[
        str,
        Field(
            min_length=8,
            max_length=1024,
            pattern=_URI,
            description="The weights: a GGUF file, or a folder of safetensors with its tokenizer. file:///PATH is a "
            "path inside the engine container (from the image or from replica.pod.volumes); pvc://CLAIM/PATH is a path "
            "on a PersistentVolumeClaim of this namespace, mounted read-only.",
            json_schema_extra=matches(_URI, "must be file:///PATH or pvc://CLAIM/PATH; other schemes are not served"),
        ),
    ]
    sha256: Annotated[
        str | None,
        Field(
            pattern=_SHA256,
            max_length=64,
            description="SHA-256 of the file, or of the sorted 'sha256  path' list of the folder, in lower-case hex. "
            "Checked before the weights are loaded. Absent means not checked.",
            json_schema_extra=matches(_SHA256, "must be the 64 lower-case hex digits that sha256sum prints"),
        ),
    ] = None


class Runtime(StrEnum):
    """Engine programs whose arguments, port and paths we know."""

    TIDEWHEEL = "tidewheel"


class Dtype(StrEnum):
    """Number format of weights and activations."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class Engine(Record):
    """The engine program of every replica."""

    runtime: Annotated[
        Runtime,
        Field(description="Which engine program the image holds: its arguments, port and paths follow from this."),
    ] = Runtime.TIDEWHEEL
    image: Annotated[
        str,
        Field(
            min_length=1,
            max_length=512,
            description="Container image whose entry point is the engine program. Give a digest or a tag that never "
            "moves: replicas started later pull it again.",
            json_schema_extra=matches(r"^[^\s]+$", "must be an image reference without spaces"),
        ),
    ]
    max_model_len: Annotated[
        int,
        Field(
            ge=16,
            le=10_000_000,
            description="Longest prompt plus reply that a replica accepts, in tokens.",
        ),
    ] = 2048
    dtype: Annotated[
        Dtype, Field(description="Number format of weights and activations; bfloat16 needs half the memory.")
    ] = Dtype.BFLOAT16
    args: Annotated[
        list[Annotated[str, Field(max_length=1024)]],
        Field(
            max_length=64,
            description="Further arguments, passed to the engine program as they are, after those that we derive. "
            "None by default.",
        ),
    ] = []


class PodOverlay(Record):
    """What a replica's pod may carry beyond what we derive.

    Maps are merged key by key and ours win, but for securityContext, where ours are defaults; lists are appended.
    """

    labels: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]],
        Field(
            max_length=32,
            description="Labels of the pod. Keys under tidewheel.dev/ are the operator's and are refused.",
            json_schema_extra=obeys(
                "self.all(k, !format.qualifiedName().validate(k).hasValue()"
                " && !format.labelValue().validate(self[k]).hasValue())",
                "must be valid label keys and values: at most 63 letters, digits, '-', '_' and '.'",
            ),
        ),
    ] = {}
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32, description="Annotations of the pod.")
    ] = {}
    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]],
        Field(max_length=32, description="Labels a node must carry to run a replica."),
    ] = {}
    affinity: Annotated[PodObject | None, Field(description="Affinity, as in a Pod.")] = None
    tolerations: Annotated[list[PodObject], Field(max_length=32, description="Tolerations, as in a Pod.")] = []
    topology_spread_constraints: Annotated[
        list[SpreadObject], Field(max_length=8, description="Topology spread constraints, as in a Pod.")
    ] = []
    priority_class_name: Annotated[
        str | None, Field(max_length=253, description="PriorityClass of the pod; the cluster's default if absent.")
    ] = None
    runtime_class_name: Annotated[
        str | None, Field(max_length=253, description="RuntimeClass of the pod; the node's default if absent.")
    ] = None
    service_account_name: Annotated[
        str | None,
        Field(
            max_length=253, description="ServiceAccount of the pod, whose token is not mounted; 'default' if absent."
        ),
    ] = None
    image_pull_secrets: Annotated[
        list[NamedPodObject], Field(max_length=8, description="Secrets the node pulls the image with, as in a Pod.")
    ] = []
    env: Annotated[
        list[NamedPodObject],
        Field(max_length=64, description="Environment of the engine container, as in a Container."),
    ] = []
    volumes: Annotated[list[NamedPodObject], Field(max_length=32, description="Volumes of the pod, as in a Pod.")] = []
    volume_mounts: Annotated[
        list[MountObject], Field(max_length=32, description="Mounts of the engine container, as in a Container.")
    ] = []
    security_context: Annotated[
        PodObject | None,
        Field(
            description="Security context of the whole pod, as in a Pod. Its keys replace our defaults: non-root user, "
            "group and fsGroup 65532, seccomp profile RuntimeDefault."
        ),
    ] = None
    termination_grace_period_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=86_400,
            description="Seconds between SIGTERM and SIGKILL. Absent means drain.timeoutSeconds + 15, so that an "
            "eviction cuts no stream early.",
        ),
    ] = None


class Replica(Record):
    """Shape of one replica."""

    gpus: Annotated[int, Field(ge=0, le=64, description="GPUs of one replica; 0 is a CPU replica.")] = 0
    gpu_resource: Annotated[
        str,
        Field(
            min_length=3,
            max_length=253,
            pattern=_EXTENDED_RESOURCE,
            description="Extended resource that counts GPUs.",
            json_schema_extra=matches(
                _EXTENDED_RESOURCE, "must be an extended resource, DOMAIN/NAME, such as nvidia.com/gpu"
            ),
        ),
    ] = "nvidia.com/gpu"
    cpu: Annotated[
        Quantity, Field(description="CPU requested for one replica, in cores, as a Kubernetes quantity such as 500m.")
    ] = "1"
    memory: Annotated[
        Quantity,
        Field(
            description="Memory requested and allowed for one replica, in bytes, as a Kubernetes quantity such as 64Gi."
        ),
    ] = "1Gi"
    pod: Annotated[PodOverlay, Field(description="What the pod may carry beyond what we derive.")] = PodOverlay()


class Slo(Record):
    """What the version promises its users."""

    ttft_ms: Annotated[
        int, Field(ge=1, le=600_000, description="Time to first token that counts as good, in milliseconds.")
    ] = 1000
    tpot_ms: Annotated[
        int,
        Field(
            ge=1,
            le=60_000,
            description="Mean time per output token after the first that counts as good, in milliseconds.",
        ),
    ] = 50


class Drain(Record):
    """How long streams in progress are protected."""

    timeout_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=86_400,
            description="Longest time a replica that leaves waits for its open streams, in seconds; then they are cut.",
        ),
    ] = 600


class ModelVersionSpec(Record):
    """What to run. Only replicas, scaling, slo and drain may change; for the rest make another version."""

    model: ModelName
    version: Annotated[VersionName, Field(description="Name of this version, such as v43. Immutable.")]
    artifact: Annotated[Artifact, Field(description="The weights. Immutable.")]
    engine: Annotated[Engine, Field(description="The engine program of every replica. Immutable.")]
    replica: Annotated[Replica, Field(description="Shape of one replica. Immutable.")] = Replica()
    slo: Annotated[Slo, Field(description="What the version promises its users.")] = Slo()
    replicas: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAXIMUM_REPLICAS,
            description="Replicas wanted; also written by the scale subresource. Not together with scaling. A version "
            "that carries traffic has at least one, whatever this says.",
        ),
    ] = None
    scaling: Annotated[
        Scaling | None,
        Field(description="Lets the operator choose the number of replicas within bounds. Not together with replicas."),
    ] = None
    drain: Annotated[Drain, Field(description="How long streams in progress are protected.")] = Drain()


class Phase(StrEnum):
    """Where a version is in its life, computed for columns and never read back."""

    IDLE = "Idle"
    LOADING = "Loading"
    READY = "Ready"
    CANARY = "Canary"
    STABLE = "Stable"
    RETIRED = "Retired"


class ModelVersionStatus(Record):
    """What the operator saw last."""

    phase: Annotated[
        Phase | None,
        Field(
            description="Idle, Loading, Ready (no traffic), Canary (part of it), Stable (most of it) or Retired "
            "(leaving). For columns; the conditions say why."
        ),
    ] = None
    digest: Digest | None = None
    replicas: Annotated[int, Field(ge=0, description="Replica pods that exist and are not leaving.")] = 0
    ready_replicas: Annotated[
        int, Field(ge=0, description="Replicas that have generated a real token and take traffic.")
    ] = 0
    draining_replicas: Annotated[int, Field(ge=0, description="Replicas that finish their streams before they go.")] = 0
    desired_replicas: Annotated[int, Field(ge=0, description="Replicas wanted now, from the replica table.")] = 0
    forecast_replicas: Annotated[
        int | None, Field(ge=0, description="Replicas that demand forecast for now + lead will need, margin included.")
    ] = None
    scaling: Annotated[
        ScalingStatus | None, Field(description="Why the version has this size; absent without spec.scaling.")
    ] = None
    capacity: Annotated[CapacityStatus | None, Field(description="What one replica carries within the SLO.")] = None
    cold_start: Annotated[ColdStartStatus | None, Field(description="How long starts have taken.")] = None
    ready: Annotated[str | None, Field(max_length=24, description="ready/desired, for the column.")] = None
    selector: Annotated[
        str | None, Field(max_length=512, description="Label selector of the replicas, for the scale subresource.")
    ] = None
    active_streams: Annotated[
        int | None, Field(ge=0, description="Streams still open on replicas that are leaving.")
    ] = None
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            description="Ready, Reconciling, Stalled, Accepted, Scheduled, WeightsLoaded, Available, Degraded.",
            json_schema_extra=list_map("type"),
        ),
    ] = []
    observed_generation: Annotated[
        int | None, Field(ge=-1, description="Generation of the spec that this status answers; -1: none yet.")
    ] = None
