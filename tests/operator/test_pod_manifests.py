"""The pod of a replica, and how the overlay is merged into it."""

from typing import Any

from tests.operator.builders import version

from tidewheel.operator.planning.podmanifest import PodSettings, engine_pod

SETTINGS = PodSettings(engine_token=True)


def made(settings: PodSettings = SETTINGS, **spec: Any) -> dict[str, Any]:
    record = version("v1", **spec)
    assert record.spec is not None
    return engine_pod(record, record.spec, slot=2, incarnation=1, settings=settings)


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["containers"][0]
    return found


def test_name_labels_and_no_owner() -> None:
    metadata = made()["metadata"]
    assert metadata["name"] == "chat-v1-2-1"
    assert "ownerReferences" not in metadata
    assert metadata["labels"]["tidewheel.dev/uid"] == "uid-v1"
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "tidewheel"


def test_arguments_come_from_the_spec_and_the_version_s_own_come_last() -> None:
    arguments = container(
        made(
            artifact={"uri": "file:///models/m.gguf", "sha256": "a" * 64},
            engine={"image": "i", "maxModelLen": 4096, "dtype": "float32", "args": ["--runner=simulated"]},
            drain={"timeoutSeconds": 60},
        )
    )["args"]
    assert arguments == [
        "--model=file:///models/m.gguf",
        "--host=0.0.0.0",
        "--port=8000",
        "--served-model-name=chat",
        "--dtype=float32",
        "--max-model-len=4096",
        "--shutdown-timeout=60",
        f"--sha256={'a' * 64}",
        "--api-token-file=/var/run/tidewheel/token",
        "--runner=simulated",
    ]


def test_a_claim_is_mounted_read_only_and_the_path_is_on_it() -> None:
    manifest = made(artifact={"uri": "pvc://models/chat/m.gguf"})
    volume = manifest["spec"]["volumes"][-1]
    assert volume == {"name": "artifact", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    assert "--model=/var/run/tidewheel-artifact/chat/m.gguf" in container(manifest)["args"]


def test_without_an_engine_token_nothing_is_mounted_and_nothing_asked() -> None:
    manifest = made(PodSettings(engine_token=False))
    assert manifest["spec"]["volumes"] == []
    assert not any("token" in argument for argument in container(manifest)["args"])


def test_gpus_are_asked_for_as_the_extended_resource() -> None:
    resources = container(made(replica={"gpus": 4, "gpuResource": "amd.com/gpu", "cpu": "8", "memory": "64Gi"}))[
        "resources"
    ]
    assert resources == {
        "requests": {"cpu": "8", "memory": "64Gi", "amd.com/gpu": "4"},
        "limits": {"memory": "64Gi", "amd.com/gpu": "4"},
    }


def test_the_pod_passes_the_restricted_pod_security_standard() -> None:
    spec = made()["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert container(made())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_grace_is_longer_than_the_drain_unless_the_overlay_says_otherwise() -> None:
    assert made(drain={"timeoutSeconds": 600})["spec"]["terminationGracePeriodSeconds"] == 615
    overlay = {"pod": {"terminationGracePeriodSeconds": 30}}
    assert made(replica=overlay)["spec"]["terminationGracePeriodSeconds"] == 30


def test_probes_ask_for_a_token_and_for_progress() -> None:
    engine = container(made())
    assert engine["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert engine["readinessProbe"]["periodSeconds"] == 1
    assert engine["startupProbe"]["httpGet"]["path"] == "/ready"
    assert engine["livenessProbe"]["httpGet"]["path"] == "/health"
    assert made()["spec"]["readinessGates"] == [{"conditionType": "tidewheel.dev/serving"}]


def test_the_overlay_is_merged_by_its_rules() -> None:
    overlay = {
        "labels": {"team": "search", "app.kubernetes.io/managed-by": "me"},
        "annotations": {"note": "x"},
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
        "env": [{"name": "OMP_NUM_THREADS", "value": "4"}],
        "volumes": [{"name": "models", "hostPath": {"path": "/models"}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        "securityContext": {"runAsUser": 1000},
    }
    manifest = made(replica={"pod": overlay})
    spec, metadata = manifest["spec"], manifest["metadata"]
    assert metadata["labels"]["team"] == "search"
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "tidewheel", "ours win"
    assert metadata["annotations"] == {"note": "x"}
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == overlay["tolerations"]
    assert spec["priorityClassName"] == "high"
    assert [volume["name"] for volume in spec["volumes"]] == ["engine-token", "models"]
    assert [mount["name"] for mount in container(manifest)["volumeMounts"]] == ["engine-token", "models"]
    assert container(manifest)["env"] == overlay["env"]
    assert spec["securityContext"]["runAsUser"] == 1000, "our security context is only a default"
    assert spec["securityContext"]["runAsNonRoot"] is True
