"""Names that components, people and dashboards share: the API group, labels, object names."""

from typing import Final, NewType

GROUP: Final = "tidewheel.dev"
API_VERSION: Final = "v1alpha1"
GROUP_VERSION: Final = f"{GROUP}/{API_VERSION}"

MODEL_LABEL: Final = f"{GROUP}/model"
VERSION_LABEL: Final = f"{GROUP}/version"
UID_LABEL: Final = f"{GROUP}/uid"
DIGEST_LABEL: Final = f"{GROUP}/digest"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "tidewheel"

IN_SERVICE_FINALIZER: Final = f"{GROUP}/in-service"
SERVING_GATE: Final = f"{GROUP}/serving"

ENGINE_PORT: Final = 8000
ENGINE_PORT_NAME: Final = "http"
ENGINE_TOKEN_SECRET: Final = "tidewheel-engine-token"

TOTAL_BASIS_POINTS: Final = 10_000

BasisPoints = NewType("BasisPoints", int)
"""A share of traffic: 10,000 is all of it."""


def model_version_name(model: str, version: str) -> str:
    """Name of the ModelVersion object, and of its headless Service, for a version of a model."""
    return f"{model}-{version}"


def ledger_name(model: str) -> str:
    """Name of the ConfigMap with the decisions about a model's rollouts."""
    return f"{model}-rollout-ledger"


def quality_name(model: str) -> str:
    """Name of the ConfigMap with what both versions last answered to the shadow prompts."""
    return f"{model}-rollout-quality"


QUALITY_KEY: Final = "answers"
"""Where in that ConfigMap: JSON, the worst prompts first."""

LEDGER_KEY: Final = "ledger"
"""Where in that ConfigMap: text for ``tidewheel.rollout.ledger.codec.from_text``."""
