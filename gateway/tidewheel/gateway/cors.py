"""Which web pages may use the API from a browser: cross-origin resource sharing (the Fetch standard). Pure.

Off unless origins are named. Cookies are never asked for: a page shows its key in the Authorization header.
"""

import re
from dataclasses import dataclass
from typing import Final

from tidewheel.gateway.requests import Request

HeaderPairs = list[tuple[str, str]]
_METHODS: Final = "GET, POST, DELETE"
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/,*]+\Z")
_NAMES: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]*\Z")
_EXPOSED: Final = ", ".join(
    (
        "link",
        "openai-processing-ms",
        "retry-after",
        "retry-after-ms",
        "x-request-id",
        "x-should-retry",
        *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
        *(f"x-tidewheel-{name}" for name in ("reply", "resumable", "events-kept-seconds", "version", "notice")),
        *(f"x-tidewheel-{name}" for name in ("queued-ms", "queue-position", "eta-ms")),
    )
)


class OriginError(ValueError):
    """``--cors-origins`` names something that is no origin."""


@dataclass(frozen=True, slots=True)
class Cors:
    """``any_origin`` is ``*``."""

    origins: frozenset[str]
    any_origin: bool = False

    @classmethod
    def parse(cls, text: str) -> "Cors | None":
        """From the setting; None where no page may. Raises OriginError."""
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in ("*", "null") and not _ORIGIN.match(name):
                message = f"--cors-origins: '{name}' is no origin; write https://chat.example.org, without a path, or *"
                raise OriginError(message)
        return cls(frozenset(names), any_origin="*" in names) if names else None

    def headers(self, request: Request) -> HeaderPairs:
        """What an answer to this request says to the browser."""
        origin = request.header(b"origin")
        if origin is None:
            return [("vary", "Origin")]
        if not self.any_origin and origin not in self.origins:
            return [("vary", "Origin")]
        allowed = "*" if self.any_origin else origin
        return [
            ("access-control-allow-origin", allowed),
            ("access-control-expose-headers", _EXPOSED),
            ("vary", "Origin"),
        ]

    def preflight(self, request: Request, *, max_age: float) -> HeaderPairs | None:
        """The further headers of the answer to a browser's question; None when this is none."""
        if request.method != "OPTIONS" or b"access-control-request-method" not in request.headers:
            return None
        if len(self.headers(request)) == 1:
            return []
        wanted = request.header(b"access-control-request-headers") or ""
        named = [("access-control-allow-headers", wanted)] if wanted and _NAMES.match(wanted) else []
        return [("access-control-allow-methods", _METHODS), ("access-control-max-age", str(int(max_age))), *named]
