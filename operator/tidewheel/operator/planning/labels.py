"""Labels of everything that we make for a version."""

from typing import Final

from tidewheel.crds.names import (
    DIGEST_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MODEL_LABEL,
    UID_LABEL,
    VERSION_LABEL,
)
from tidewheel.operator.planning.records import VersionRecord

_LABEL_LENGTH: Final = 40


def digest_label(digest: str) -> str:
    """The digest shortened to what a label value may hold."""
    return digest.removeprefix("sha256:")[:_LABEL_LENGTH]


def child_labels(version: VersionRecord) -> dict[str, str]:
    """Whose child it is, and which content it runs."""
    return {
        MODEL_LABEL: version.model,
        VERSION_LABEL: version.version,
        UID_LABEL: version.meta.uid,
        DIGEST_LABEL: digest_label(version.digest),
        MANAGED_BY_LABEL: MANAGED_BY,
    }
