"""The digest: what it depends on, and that it never changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.crds.builders import Break, broken, model_version, with_

from tidewheel.crds.digest import canonical_form, digest
from tidewheel.crds.modelversion import ModelVersionSpec


def spec(*breaks: Break) -> ModelVersionSpec:
    """A spec with the changes made."""
    return ModelVersionSpec.model_validate(broken(model_version(), *breaks)["spec"])


def test_golden_digests_never_change() -> None:
    """Pods and rejections in clusters carry these: a change here changes every running version's identity."""
    assert canonical_form(spec()) == (
        '{"artifact":{"uri":"file:///models/chat.gguf"},"engine":{"image":"tidewheel:dev"},"replica":{}}'
    )
    assert digest(spec()) == "sha256:cc90249a1740b89d39aa505419c2bccf3b837e77aea5a591e021ec06b9ddddd6"
    full = spec(
        with_("spec.artifact.sha256", "a" * 64),
        with_("spec.engine.dtype", "float32"),
        with_("spec.replica.gpus", 4),
        with_("spec.replica.pod.labels", {"b": "ü", "a": "1"}),
        with_("spec.replica.pod.tolerations", [{"key": "gpu", "operator": "Exists"}]),
    )
    assert digest(full) == "sha256:e7b1b1d5c70bbeb3c7a89c99d118c0680670e63c3730ac7d248ae36e67c42fd6"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(with_("spec.replicas", 7), id="replicas"),
        pytest.param(with_("spec.scaling", {"maxReplicas": 3}), id="scaling"),
        pytest.param(with_("spec.slo.tpotMs", 7), id="slo"),
        pytest.param(with_("spec.drain.timeoutSeconds", 7), id="drain"),
        pytest.param(with_("spec.engine.dtype", "bfloat16"), id="a default written out"),
        pytest.param(with_("spec.replica", {"pod": {}}), id="an empty overlay written out"),
        pytest.param(with_("spec.replica.cpu", 1), id="a quantity without quotes"),
        pytest.param(with_("spec.fieldOfTomorrow", 7), id="a field that this program does not know"),
    ],
)
def test_what_does_not_change_behaviour_does_not_change_the_digest(change: Break) -> None:
    assert digest(spec(change)) == digest(spec())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(with_("spec.artifact.uri", "file:///models/other"), id="uri"),
        pytest.param(with_("spec.artifact.sha256", "b" * 64), id="sha256"),
        pytest.param(with_("spec.engine.image", "tidewheel:2"), id="image"),
        pytest.param(with_("spec.engine.maxModelLen", 4096), id="maxModelLen"),
        pytest.param(with_("spec.engine.args", ["--x"]), id="args"),
        pytest.param(with_("spec.replica.gpus", 1), id="gpus"),
        pytest.param(with_("spec.replica.pod.env", [{"name": "A", "value": "b"}]), id="environment"),
    ],
)
def test_what_changes_behaviour_changes_the_digest(change: Break) -> None:
    assert digest(spec(change)) != digest(spec())


@given(st.permutations(["artifact", "engine", "replica"]), st.permutations(["gpus", "cpu", "memory"]))
def test_the_order_of_keys_does_not_matter(outer: list[str], inner: list[str]) -> None:
    values = {"gpus": 2, "cpu": "4", "memory": "8Gi"}
    base = spec(with_("spec.replica", values)).to_wire()
    shuffled = {**{key: base[key] for key in outer}, **base}
    shuffled["replica"] = {key: values[key] for key in inner}
    assert digest(ModelVersionSpec.model_validate(shuffled)) == digest(ModelVersionSpec.model_validate(base))
