"""What the chart makes of its values."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.chart.rendering import CHART, NAMESPACE, Helm, select

from tidewheel.crds.names import ENGINE_TOKEN_SECRET, UID_LABEL
from tidewheel.gateway.settings import Settings as GatewaySettings
from tidewheel.operator.settings import parse_settings as parse_operator_settings

Objects = list[dict[str, Any]]
PROGRAMS = ["gateway", "operator"]


def pod_of(objects: Objects, program: str) -> dict[str, Any]:
    (deployment,) = select(objects, "Deployment", f"tidewheel-{program}")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def test_lint_has_nothing_to_say(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"gatway": {}}, "gatway", id="unknown value"),
        pytest.param({"gateway": {"replica": 3}}, "replica", id="unknown value inside"),
        pytest.param({"gateway": {"replicas": -1}}, "gateway/replicas", id="negative replicas"),
        pytest.param({"servingNamespaces": []}, "servingNamespaces", id="no namespace"),
        pytest.param({"servingNamespaces": ["Shop"]}, "servingNamespaces", id="no valid namespace"),
        pytest.param({"engineToken": {"value": "short"}}, "engineToken/value", id="token too short"),
        pytest.param({"image": {"registry": "r.example/"}}, "image/registry", id="registry with a trailing slash"),
        pytest.param({"spotNotice": {"file": "notice"}}, "spotNotice/file", id="notice without a folder"),
        pytest.param({"sre": {"subjects": [{"kind": "Robot", "name": "x"}]}}, "sre/subjects", id="unknown subject"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, values: dict[str, Any], words: str) -> None:
    arguments = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    done = helm.run("template", "tidewheel", str(CHART), *arguments)
    assert done.returncode != 0
    assert words in done.stderr.replace(".", "/")


def test_crds_stay_on_uninstall_and_can_be_left_out(helm: Helm, rendered: Objects) -> None:
    crds = select(rendered, "CustomResourceDefinition")
    assert len(crds) == 3
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in crds)
    assert not select(helm.render("--set=crds.install=false"), "CustomResourceDefinition")


@pytest.mark.parametrize("program", PROGRAMS)
def test_pods_meet_the_restricted_standard(rendered: Objects, program: str) -> None:
    pod = pod_of(rendered, program)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert not any("hostPath" in volume for volume in pod.get("volumes", ()))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_container_has_probes_and_bounds(rendered: Objects, program: str) -> None:
    for container in pod_of(rendered, program)["containers"]:
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        assert container["resources"]["limits"]["memory"]
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


@pytest.mark.parametrize("program", PROGRAMS)
def test_two_replicas_survive_a_drain_one_at_a_time(helm: Helm, rendered: Objects, program: str) -> None:
    (budget,) = select(rendered, "PodDisruptionBudget", f"tidewheel-{program}")
    (deployment,) = select(rendered, "Deployment", f"tidewheel-{program}")
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    single = helm.render(f"--set={program}.replicas=1")
    assert not select(single, "PodDisruptionBudget", f"tidewheel-{program}")


def test_the_gateway_accepts_its_arguments(helm: Helm) -> None:
    objects = helm.render('--set-json=servingNamespaces=["shop","lab"]', "--set=gateway.shutdownSeconds=30")
    (container,) = pod_of(objects, "gateway")["containers"]
    settings = GatewaySettings.from_arguments(container["args"])
    assert settings.namespaces == ("shop", "lab")
    assert (settings.port, settings.admin_port) == (8080, 9090)
    assert settings.drain_timeout == 30
    assert settings.engine_token_file is not None
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(settings.engine_token_file.parent) in mounts
    assert str(settings.state_dir) in mounts


def test_the_operator_accepts_its_arguments(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render('--set-json=servingNamespaces=["shop","lab"]')
    (container,) = pod_of(objects, "operator")["containers"]
    (token_flag,) = [argument for argument in container["args"] if argument.startswith("--engine-token-file=")]
    assert {m["mountPath"] for m in container["volumeMounts"]} == {str(Path(token_flag.partition("=")[2]).parent)}
    (tmp_path / "token").touch()  # the operator refuses to start without its token
    arguments = [argument for argument in container["args"] if argument != token_flag]
    settings = parse_operator_settings([*arguments, f"--engine-token-file={tmp_path / 'token'}"], {})
    assert settings.serving_namespaces == ("shop", "lab")
    assert settings.namespace == NAMESPACE
    assert settings.port == 9090


def test_a_gateway_pod_outlives_its_streams(helm: Helm) -> None:
    pod = pod_of(helm.render("--set=gateway.shutdownSeconds=600"), "gateway")
    assert pod["terminationGracePeriodSeconds"] > 600


def test_services_reach_the_named_ports(rendered: Objects) -> None:
    ports = {port["name"] for port in pod_of(rendered, "gateway")["containers"][0]["ports"]}
    for name in ("tidewheel-gateway", "tidewheel-gateway-admin"):
        (service,) = select(rendered, "Service", name)
        assert service["spec"]["type"] == "ClusterIP"
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_the_same_token_in_every_namespace_that_reads_it(helm: Helm) -> None:
    secrets = select(helm.render('--set-json=servingNamespaces=["shop","lab"]'), "Secret")
    assert {secret["metadata"]["namespace"] for secret in secrets} == {NAMESPACE, "shop", "lab"}
    assert {secret["metadata"]["name"] for secret in secrets} == {ENGINE_TOKEN_SECRET}
    assert len({secret["stringData"]["token"] for secret in secrets}) == 1
    assert len(secrets[0]["stringData"]["token"]) >= 32


def test_a_given_token_is_used_and_creation_can_be_left_to_others(helm: Helm) -> None:
    given = select(helm.render("--set=engineToken.value=0123456789abcdef0123"), "Secret")
    assert {secret["stringData"]["token"] for secret in given} == {"0123456789abcdef0123"}
    assert not select(helm.render("--set=engineToken.create=false"), "Secret")


def test_engines_let_in_gateway_operator_and_prometheus_only(rendered: Objects) -> None:
    (policy,) = select(rendered, "NetworkPolicy")
    assert policy["metadata"]["namespace"] == "default"
    assert policy["spec"]["podSelector"]["matchExpressions"] == [{"key": UID_LABEL, "operator": "Exists"}]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    (ingress,) = policy["spec"]["ingress"]
    ours, *scrapers = ingress["from"]
    assert ours["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    (components,) = [e["values"] for e in ours["podSelector"]["matchExpressions"] if e["key"].endswith("component")]
    assert components == ["gateway", "operator"]
    assert len(scrapers) == 1


def test_images_come_from_the_registry_that_is_named(helm: Helm) -> None:
    objects = helm.render("--set=image.registry=r.example/team", "--set=image.tag=1.2.3")
    for program in PROGRAMS:
        (container,) = pod_of(objects, program)["containers"]
        assert container["image"] == f"r.example/team/tidewheel-{program}:1.2.3"


def test_gateways_read_keys_from_the_secret_that_is_named(helm: Helm, rendered: Objects) -> None:
    assert not any(each.startswith("--key-file") for each in pod_of(rendered, "gateway")["containers"][0]["args"])
    pod = pod_of(helm.render("--set=gateway.keys.secretName=api-keys"), "gateway")
    settings = GatewaySettings.from_arguments(pod["containers"][0]["args"])
    assert (str(settings.key_file), settings.gateways) == ("/var/run/tidewheel-keys/keys.json", 2)
    assert {"name": "keys", "secret": {"secretName": "api-keys"}} in pod["volumes"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "keys"]
    assert mount["readOnly"] is True


def test_gateways_share_replies_through_the_redis_that_is_named(helm: Helm, rendered: Objects) -> None:
    assert not any("redis" in argument for argument in pod_of(rendered, "gateway")["containers"][0]["args"])
    embedded = helm.render("--set=redis.embedded=true")
    (argument,) = [text for text in pod_of(embedded, "gateway")["containers"][0]["args"] if "redis" in text]
    assert argument == f"--redis-url=redis://tidewheel-redis.{NAMESPACE}.svc:6379/0"
    assert select(embedded, "Service", "tidewheel-redis")
    (seal,) = select(embedded, "Secret", "tidewheel-reply-seal")
    assert len(seal["stringData"]["key"]) == 32
    assert {"name": "seal", "secret": {"secretName": "tidewheel-reply-seal"}} in pod_of(embedded, "gateway")["volumes"]
    (policy,) = select(embedded, "NetworkPolicy", "tidewheel-redis")
    assert (
        policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        == "gateway"
    )
    named = helm.render("--set=redis.urlSecret=replies,redis.sealSecret=seal")
    settings = GatewaySettings.from_arguments(pod_of(named, "gateway")["containers"][0]["args"])
    assert str(settings.redis_url_file) == "/var/run/tidewheel-redis/url"
    assert str(settings.reply_key_file) == "/var/run/tidewheel-seal/key"
    volumes = {volume["name"]: volume for volume in pod_of(named, "gateway")["volumes"]}
    assert volumes["redis"]["secret"]["secretName"] == "replies"
    assert volumes["seal"]["secret"]["secretName"] == "seal"
    assert not select(named, "Service", "tidewheel-redis")
    assert not select(helm.render("--set=redis.embedded=true,redis.sealSecret=own"), "Secret", "tidewheel-reply-seal")


def test_a_notice_that_is_a_file_is_followed_on_the_nodes_that_are_selected(helm: Helm, rendered: Objects) -> None:
    assert not select(rendered, "DaemonSet")
    objects = helm.render("--set=spotNotice.file=/var/run/spot/notice", "--set=spotNotice.nodeSelector.pool=spot")
    (daemon,) = select(objects, "DaemonSet", "tidewheel-spot-notice")
    pod = daemon["spec"]["template"]["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    assert pod["nodeSelector"] == {"pool": "spot"}
    assert volume["hostPath"]["path"] == "/var/run/spot"
    assert container["args"] == ["--file=/notice/notice"]
    assert container["volumeMounts"] == [{"name": "notice", "mountPath": "/notice", "readOnly": True}]
    (role,) = [role for role in select(objects, "ClusterRole") if role["metadata"]["name"].endswith("spot-notice")]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
