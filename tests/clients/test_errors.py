"""From an answer to a typed error."""

import json

import pytest

from tidewheel.clients import errors
from tidewheel.clients.errors import ApiError, error_from_answer


def status(code: int, reason: str = "", **details: object) -> bytes:
    """A metav1.Status."""
    return json.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": "said so", "details": details}
    ).encode()


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (410, "Expired", errors.Gone),
        (418, "", ApiError),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerUnavailable),
        (504, "Timeout", errors.ServerUnavailable),
    ],
)
def test_each_status_has_its_class(code: int, reason: str, expected: type[ApiError]) -> None:
    error = error_from_answer(code, status(code, reason), call="GET /x")
    assert type(error) is expected
    assert (error.status, error.reason, str(error)) == (code, reason, "GET /x: said so")


def test_causes_name_the_fields() -> None:
    body = status(422, "Invalid", causes=[{"reason": "FieldValueInvalid", "field": "spec.x", "message": "bad"}])
    error = error_from_answer(422, body, call="")
    assert error.causes == (errors.Cause("FieldValueInvalid", "spec.x", "bad"),)


def test_how_long_to_wait_is_known_from_header_or_body() -> None:
    assert error_from_answer(429, status(429), call="", retry_after=3).retry_after == 3
    assert error_from_answer(429, status(429, retryAfterSeconds=7), call="").retry_after == 7


@pytest.mark.parametrize(
    ("body", "words"), [(b"<html>bad gateway</html>", "bad gateway"), (b"", "HTTP 502 without a body"), (b"[1]", "1")]
)
def test_a_proxys_page_is_an_unavailable_server(body: bytes, words: str) -> None:
    error = error_from_answer(502, body, call="GET /x")
    assert type(error) is errors.ServerUnavailable
    assert words in str(error)
