"""The digest of a ModelVersion: equal digests behave equally, so a rejection or a running replica can be carried over.

Only what changes behaviour counts: artifact, engine, replica; not replicas, scaling, slo or drain. Fields at their
default are left out, so that neither the API server's defaulting nor a field that we add later changes a digest. So a
new field's default must mean what was so before, and no default may ever change (a golden test holds both).
"""

import hashlib
import json
from typing import Final

from tidewheel.crds.modelversion import ModelVersionSpec

_BEHAVIOUR: Final = ("artifact", "engine", "replica")


def canonical_form(spec: ModelVersionSpec) -> str:
    """What is hashed: ASCII JSON with sorted keys and no spaces."""
    parts = {
        name: getattr(spec, name).model_dump(mode="json", by_alias=True, exclude_defaults=True) for name in _BEHAVIOUR
    }
    return json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(spec: ModelVersionSpec) -> str:
    """``sha256:`` and 64 hex digits."""
    return f"sha256:{hashlib.sha256(canonical_form(spec).encode()).hexdigest()}"
