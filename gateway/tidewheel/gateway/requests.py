"""HTTP/1.1 requests out of bytes, with the limits that httptools lacks.

llhttp refuses what request smuggling needs (Content-Length beside Transfer-Encoding, two lengths, folded headers, bare
CR or LF, odd transfer codings); here come the bounds on bytes and lines, and the sentences.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final
from urllib.parse import unquote

import httptools

from tidewheel.gateway.errors import InvalidRequestError
from tidewheel.gateway.settings import Settings

_FRAMING_PER_BODY_BYTE: Final = 8
_NO_VALUE: Final = b""


@dataclass(slots=True)
class Request:
    """One complete request. Header names are lower case; repeated headers are joined by a comma."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    chunked_replies: bool

    def header(self, name: bytes) -> str | None:
        """A header as text, or None."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1").strip()


class Phase(Enum):
    """How far the parser is in a request."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


@dataclass(slots=True)
class _Partial:
    url: bytearray = field(default_factory=bytearray)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    head_bytes: int = 0
    lines: int = 0
    body: bytearray = field(default_factory=bytearray)


class RequestParser:
    """Feed bytes, get complete requests; raises InvalidRequestError once, after which the connection must be closed."""

    __slots__ = ("_complete", "_error", "_parser", "_partial", "_settings", "_wire_bytes", "expects_continue", "phase")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._parser = httptools.HttpRequestParser(self)
        self._partial = _Partial()
        self._complete: list[Request] = []
        self._error: InvalidRequestError | None = None
        self._wire_bytes = 0
        self.phase = Phase.IDLE
        self.expects_continue = False

    def feed(self, data: bytes) -> list[Request]:
        """The requests that are complete now. Raises InvalidRequestError when the first of them is not a request."""
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._error = self._error or InvalidRequestError(
                "Upgrades are not supported.", code="upgrade_not_supported"
            )
        except httptools.HttpParserError as error:
            self._error = self._error or _explain(error)
        self._check_wire_bytes()
        complete, self._complete = self._complete, []
        if self._error is not None:
            if not complete:
                raise self._error
            complete[-1].keep_alive = False  # answer what was whole, then close
        return complete

    @property
    def body_bytes(self) -> int:
        """Bytes of the body received so far."""
        return len(self._partial.body)

    def _check_wire_bytes(self) -> None:
        limit = self._settings.max_header_bytes
        if self.phase is Phase.HEAD and self._wire_bytes > limit:
            self._error = self._error or _head_too_large(f"are longer than {limit} bytes")
        framing = self._wire_bytes - len(self._partial.body)
        if self.phase is Phase.BODY and framing > limit + _FRAMING_PER_BODY_BYTE * len(self._partial.body):
            self._error = self._error or InvalidRequestError("The body is sent in absurdly small chunks.")

    def _stop(self, error: InvalidRequestError) -> None:
        self._error = self._error or error
        raise error  # ends feed_data

    # httptools callbacks.

    def on_message_begin(self) -> None:
        """A request line begins."""
        self.phase = Phase.HEAD
        self.expects_continue = False
        self._partial = _Partial()

    def on_url(self, url: bytes) -> None:
        """Part of the request target."""
        self._partial.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; trailers count as lines and are dropped."""
        partial = self._partial
        partial.lines += 1
        if partial.lines > self._settings.max_headers:
            self._stop(_head_too_large(f"are more than {self._settings.max_headers}"))
        self._count(len(name) + len(value) + len(b": \r\n"))
        if self.phase is not Phase.HEAD:
            return
        name = name.lower()
        known = partial.headers.get(name)
        partial.headers[name] = value if known is None else known + b", " + value

    def on_headers_complete(self) -> None:
        """Refuse a body that is too long before it is sent."""
        headers = self._partial.headers
        if self._parser.get_http_version() == "1.1" and b"host" not in headers:
            self._stop(InvalidRequestError("The Host header is missing."))
        if int(headers.get(b"content-length", b"0") or b"0") > self._settings.max_body_bytes:
            self._stop(self._body_too_large())
        self.expects_continue = headers.get(b"expect", _NO_VALUE).lower() == b"100-continue"
        self.phase = Phase.BODY

    def on_body(self, data: bytes) -> None:
        """Part of the body."""
        self._partial.body += data
        if len(self._partial.body) > self._settings.max_body_bytes:
            self._stop(self._body_too_large())

    def on_message_complete(self) -> None:
        """Keep the request."""
        partial = self._partial
        path, _, query = partial.url.decode("latin-1").partition("?")
        self._complete.append(
            Request(
                method=self._parser.get_method().decode(),
                path=unquote(path),
                query=query,
                headers=partial.headers,
                body=bytes(partial.body),
                keep_alive=self._parser.should_keep_alive(),
                chunked_replies=self._parser.get_http_version() == "1.1",
            )
        )
        self._partial = _Partial()
        self._wire_bytes = 0
        self.phase = Phase.IDLE

    def _count(self, head_bytes: int) -> None:
        self._partial.head_bytes += head_bytes
        if self._partial.head_bytes > self._settings.max_header_bytes:
            self._stop(_head_too_large(f"are longer than {self._settings.max_header_bytes} bytes"))

    def _body_too_large(self) -> InvalidRequestError:
        return InvalidRequestError(
            f"The body is longer than {self._settings.max_body_bytes} bytes; send a shorter one.",
            status=413,
            code="request_too_large",
        )


def _head_too_large(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"The request's headers {what}; send fewer.", status=431, code="headers_too_large")


def _explain(error: Exception) -> InvalidRequestError:
    cause = error.__context__
    if isinstance(cause, InvalidRequestError):
        return cause
    return InvalidRequestError(f"This is not a valid HTTP/1.1 request: {error}.", code="malformed_http")
