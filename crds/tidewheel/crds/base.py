"""What every record of the API has in common.

Records are frozen, spelled camelCase on the wire and ignore fields they do not know: a newer CRD must not stop an
older program. The API server itself refuses unknown fields under strict validation.
"""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MODEL_NAME_LENGTH: Final = 40
VERSION_NAME_LENGTH: Final = 20
"""`<model>-<version>` is the name of a Service and must fit a DNS label of 63; the parts are label values."""
MAXIMUM_REPLICAS: Final = 10_000

_MODEL_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_VERSION_NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class Record(BaseModel):
    """A frozen record with camelCase names on the wire."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    def to_wire(self) -> dict[str, Any]:
        """The JSON object as the API server stores it: camelCase, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def validation(
    rule: str,
    message: str,
    *,
    field: str | None = None,
    reason: str = "FieldValueInvalid",
    message_expression: str | None = None,
) -> dict[str, str]:
    """One CEL rule of ``x-kubernetes-validations``.

    ``field`` is the path that the error names; ``message_expression`` is CEL that says it with the present value, and
    ``message`` what is said where that cannot be worked out.
    """
    entry = {"rule": rule, "message": message, "reason": reason}
    if field is not None:
        entry["fieldPath"] = field
    if message_expression is not None:
        entry["messageExpression"] = message_expression
    return entry


def matches(pattern: str, message: str) -> dict[str, Any]:
    """JSON schema of a string that must match: a CEL rule, because a bare ``pattern`` quotes a regex at people."""
    return {"x-kubernetes-validations": [validation(f"self.matches(r'{pattern}')", message)]}


def obeys(rule: str, message: str) -> dict[str, Any]:
    """JSON schema of a value that must satisfy a CEL rule."""
    return {"x-kubernetes-validations": [validation(rule, message)]}


def list_map(*keys: str) -> dict[str, Any]:
    """JSON schema of a list whose items are told apart by ``keys``: no two alike, merged one by one."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ModelName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MODEL_NAME_LENGTH,
        pattern=_MODEL_NAME,
        description="Name of the model as clients send it: at most 40 lower-case letters, digits and '-', "
        "beginning with a letter. Immutable.",
        json_schema_extra=matches(
            _MODEL_NAME, "must be lower-case letters, digits and '-', begin with a letter and not end with '-'"
        ),
    ),
]
VersionName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=VERSION_NAME_LENGTH,
        pattern=_VERSION_NAME,
        description="Name of the version inside its model, such as v43: at most 20 lower-case letters, digits and '-'.",
        json_schema_extra=matches(
            _VERSION_NAME, "must be lower-case letters, digits and '-', and neither begin nor end with '-'"
        ),
    ),
]
Timestamp = Annotated[
    str,
    Field(max_length=40, json_schema_extra={"format": "date-time"}, description="A moment in UTC, by RFC 3339."),
]
Digest = Annotated[
    str,
    Field(
        max_length=71,
        description="Digest of the ModelVersion: 'sha256:' and 64 hex digits over what changes behaviour "
        "(artifact, engine, replica).",
    ),
]
