"""What an attempt's end means: for the client, for the metrics, and whether another replica may try."""

from typing import Final

import orjson

from tidewheel.gateway.errors import GatewayError, UpstreamError
from tidewheel.gateway.observation import InvalidReplyError
from tidewheel.gateway.relay import Answer, SilenceError
from tidewheel.gateway.replies.reading import EngineLeavesError
from tidewheel.gateway.sse import EventTooLongError
from tidewheel.gateway.upstream import BrokenError

PRESSURE: Final = frozenset({429, 503})
_CREDENTIALS_REFUSED: Final = frozenset({401, 403})


class LostError(Exception):
    """A stream was lost after its first event: it can only be continued, not repeated.

    ``error`` is for the client if that is not possible.
    """

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(error.message)
        self.error = error


class TryAgainError(Exception):
    """An attempt failed before its first byte: another replica may do better.

    ``error`` is for the client if none does; ``answer`` is the replica's own words, which then go to the client.
    """

    def __init__(self, error: UpstreamError, *, answer: Answer | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.answer = answer


def unreachable() -> TryAgainError:
    """No connection to the replica."""
    message = "No replica of this version could be reached; try again."
    return TryAgainError(UpstreamError(message, reason="unreachable", status=503))


def judge_status(answer: Answer) -> None:
    """Look at the status of a complete answer. Raises TryAgainError or UpstreamError; returns when it may pass."""
    status = answer.status
    if status in PRESSURE:
        message = "The replicas of this version are full; try again."
        raise TryAgainError(UpstreamError(message, reason="upstream_overloaded", status=status), answer=answer)
    if status >= 500:
        message = "The replica answered with an internal error; try again."
        raise TryAgainError(UpstreamError(message, reason="upstream_error"), answer=answer)
    if status in _CREDENTIALS_REFUSED:
        message = "The replica refused the gateway's credentials; tell who operates this service."
        raise UpstreamError(message, reason="upstream_error")


def judge_body(answer: Answer) -> None:
    """Look at the body of a whole answer. Raises UpstreamError if a client could not read it."""
    body = bytes(answer.body)
    if 200 <= answer.status < 300:
        try:
            answer.observer.observe_body(body)
        except InvalidReplyError as failure:
            raise UpstreamError(f"The reply cannot be passed on: {failure}.", reason="invalid_reply") from None
    elif answer.status < 400 or not _is_error_object(body):
        status = answer.status if answer.status >= 400 else 502
        message = f"The replica refused the request with status {answer.status} and no explanation."
        raise UpstreamError(message, reason="upstream_error" if status >= 500 else "upstream_refused", status=status)


def judge_failure(failure: Exception, answer: Answer, *, shown: bool) -> GatewayError:
    """The error for an answer that was not completed. Raises TryAgainError when no byte of it counts yet, and LostError
    when the answer may be carried on from where it is."""
    if isinstance(failure, InvalidReplyError | EventTooLongError):
        return UpstreamError(f"The reply cannot be passed on: {failure}.", reason="invalid_reply")
    if shown:
        message = f"The reply was cut short: {failure}. What was sent so far is valid but not complete."
        raise LostError(UpstreamError(message, reason=_lost_reason(failure)))
    if isinstance(failure, SilenceError):
        return UpstreamError(f"No answer in time: {failure}.", reason="upstream_timeout", status=504)
    error = UpstreamError(f"The request failed: {failure}; try again.", reason="upstream_reset")
    if isinstance(failure, BrokenError | EngineLeavesError) and not answer.body:
        raise TryAgainError(error)
    return error


def _lost_reason(failure: Exception) -> str:
    return "upstream_timeout" if isinstance(failure, SilenceError) else "stream_broken"


def failure_reason(status: int) -> str | None:
    """The label under which an answer that passes counts against its version; None if it does not."""
    if status in PRESSURE:
        return "upstream_overloaded"
    return "upstream_error" if status >= 500 else None


def retry_after_seconds(answer: Answer) -> float | None:
    """What the replica asked for, if it is a number of seconds."""
    value = answer.header(b"retry-after")
    return float(value) if value.isdigit() else None


def _is_error_object(body: bytes) -> bool:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(parsed, dict) and isinstance(parsed.get("error"), dict)
