"""What a request for inference says, as far as the gateway must know; everything else is the engine's to judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from tidewheel.gateway.errors import InvalidRequestError
from tidewheel.gateway.requests import Request

_OUTPUT_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_FORWARDED: Final = (b"content-type", b"accept", b"user-agent", b"traceparent", b"tracestate")


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A parsed body. ``conversation`` is None when the request names none."""

    fields: dict[str, Any]
    model: str
    stream: bool
    conversation: str | None
    changes: dict[str, Any] = field(default_factory=dict)

    def with_model(self, name: str) -> "InferenceRequest":
        """The same for another model."""
        return replace(self, model=name)

    def with_output_limit(self, tokens: int) -> "InferenceRequest":
        """The same with a bound on the reply, under the name that the client used."""
        names = [name for name in _OUTPUT_LIMITS if self.fields.get(name) is not None]
        return replace(self, changes={**self.changes, **dict.fromkeys(names or ["max_tokens"], tokens)})


def parse_object(request: Request) -> dict[str, Any]:
    """The body's JSON object. Raises InvalidRequestError."""
    if not request.body:
        raise InvalidRequestError("The body is empty; send a JSON object with at least 'model'.", code="invalid_json")
    try:
        fields = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error.msg}.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise InvalidRequestError("The body must be a JSON object.", code="invalid_json")
    return fields


def parse_inference(request: Request) -> InferenceRequest:
    """Check what we act on. Raises InvalidRequestError."""
    fields = parse_object(request)
    model, stream = fields.get("model"), fields.get("stream")
    if not isinstance(model, str) or not model:
        message = "'model' must name a model; GET /v1/models lists them."
        raise InvalidRequestError(message, code="missing_model", param="model")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequestError("'stream' must be true or false.", code="invalid_type", param="stream")
    return InferenceRequest(fields, model, bool(stream), _conversation(request, fields))


def _conversation(request: Request, fields: dict[str, Any]) -> str | None:
    named = request.header(b"x-conversation-id")
    if named:
        return named
    for name in ("prompt_cache_key", "user"):
        value = fields.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidRequestError(f"'{name}' must be a string.", code="invalid_type", param=name)
        if value:
            return str(value)
    return None


def engine_body(request: Request, inference: InferenceRequest, *, served_name: str, wants_ids: bool) -> bytes:
    """The body for the engine, byte for byte the client's as far as that is possible.

    Engines serve under the model's bare name (``spec.model``); a client may have said ``namespace/model``. With
    ``wants_ids`` the engine is asked for token ids, by which another replica can carry on.
    """
    fields = inference.fields
    if fields["model"] != served_name or inference.changes:
        ids = {"return_token_ids": True} if wants_ids else {}
        return orjson.dumps({**fields, **inference.changes, "model": served_name, **ids})
    if not wants_ids or "return_token_ids" in fields:
        return request.body
    rest = request.body.lstrip()[1:]
    return b'{"return_token_ids":true,' + rest


def engine_head(
    request: Request,
    *,
    path: str,
    host: bytes,
    length: int,
    attempt_id: str,
    authorization: bytes | None,
    internal: Sequence[bytes] = (),
    trace: Mapping[bytes, bytes] | None = None,
) -> bytes:
    """Request line and headers for the engine, or for a peer gateway.

    ``internal`` are header lines of our own, ``trace`` says which span the engine works for, instead of the client's.
    Of the client's headers only those that engines need are passed on: its credentials, its copies of internal headers
    and hop-by-hop headers never reach one.
    """
    lines = [
        b"POST " + path.encode("latin-1") + b" HTTP/1.1",
        b"host: " + host,
        b"content-length: %d" % length,
        b"accept-encoding: identity",
        b"x-request-id: " + attempt_id.encode(),
    ]
    passed = request.headers if trace is None else {**request.headers, **trace}
    lines += [name + b": " + passed[name] for name in _FORWARDED if name in passed]
    lines += internal
    if authorization is not None:
        lines.append(b"authorization: " + authorization)
    return b"\r\n".join(lines) + b"\r\n\r\n"
