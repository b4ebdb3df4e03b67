"""The routing that `tidewheel serve` gives its gateway: one table, one version, one engine."""

from pathlib import Path
from typing import Any, Final

from tidewheel.crds.names import GROUP_VERSION, TOTAL_BASIS_POINTS, model_version_name
from tidewheel.crds.routingtable import Cause, RoutingTableSpec, Target

NAMESPACE: Final = "default"
VERSION: Final = "local"
_NEVER_CHANGES: Final = "1970-01-01T00:00:00Z"


def static_routing(model: str, *, engine_port: int, max_model_len: int) -> dict[str, Any]:
    """What the file behind the gateway's ``--static`` says."""
    spec = RoutingTableSpec(
        model=model,
        targets=[
            Target(
                version=VERSION,
                weight=TOTAL_BASIS_POINTS,
                digest=VERSION,
                port=engine_port,
                max_model_len=max_model_len,
            )
        ],
        salt=VERSION,
        cause=Cause(actor="tidewheel serve", reason="Started", at=_NEVER_CHANGES),
    )
    table = {
        "apiVersion": GROUP_VERSION,
        "kind": "RoutingTable",
        "metadata": {"namespace": NAMESPACE, "name": model, "uid": VERSION, "generation": 1, "resourceVersion": "1"},
        "spec": spec.to_wire(),
    }
    endpoint = f"{NAMESPACE}/{model_version_name(model, VERSION)}"
    return {"tables": [table], "endpoints": {endpoint: [f"127.0.0.1:{engine_port}"]}}


def model_name(source: str) -> str:
    """A name clients can send, from a path or URI: ``/models/SmolLM2-135M.gguf`` -> ``smollm2-135m``."""
    stem = Path(source.rstrip("/")).name.lower()
    for suffix in (".gguf", ".safetensors"):
        stem = stem.removesuffix(suffix)
    slug = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in stem).strip("-")
    if not slug[:1].isalpha():
        slug = f"model-{slug}".rstrip("-")
    return slug[:40].rstrip("-")
