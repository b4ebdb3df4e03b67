"""What `tidewheel serve` tells its gateway."""

import pytest

from tidewheel.cli.serve.static_routing import model_name, static_routing
from tidewheel.crds.routingtable import RoutingTableSpec


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("smollm2", "smollm2"),
        ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4-1"),
        ("file:///models/Qwen3-0.6B/", "qwen3-0-6b"),
        ("./7B.gguf", "model-7b"),
        ("x" * 60, "x" * 40),
    ],
)
def test_a_name_that_clients_can_send(source: str, name: str) -> None:
    assert model_name(source) == name


def test_the_one_version_takes_everything_and_has_one_endpoint() -> None:
    routing = static_routing("qwen", engine_port=4711, max_model_len=4096)
    (table,) = routing["tables"]
    spec = RoutingTableSpec.model_validate(table["spec"])
    assert [(target.weight, target.port, target.max_model_len) for target in spec.targets] == [(10_000, 4711, 4096)]
    assert routing["endpoints"] == {"default/qwen-local": ["127.0.0.1:4711"]}
