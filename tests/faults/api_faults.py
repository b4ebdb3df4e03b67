"""What can go wrong between a program and the API server. See ``proxy.py`` for how to use them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.api_calls import ApiCall, Match


@dataclass(frozen=True, slots=True)
class Refuse:
    """The proxy answers in the API server's place; the call is not executed."""

    status: int
    reason: str = ""
    message: str = "refused by the test's proxy"
    retry_after: int | None = None
    location: str | None = None

    def headers(self) -> dict[str, str]:
        """What goes with it."""
        given = {"Retry-After": self.retry_after, "Location": self.location}
        return {name: str(value) for name, value in given.items() if value is not None}

    def body(self) -> bytes:
        """As the API server would say it."""
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.status}
        return json.dumps({**status, "reason": self.reason, "message": self.message}).encode()


@dataclass(frozen=True, slots=True)
class Say:
    """The proxy answers 200 with whatever this is, as a captive portal or a broken load balancer would."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is reset and the call is not executed."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing happens while the fault is in place: neither execution nor answer nor reset; then the call goes on."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The call is executed later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The call is executed with other query parameters, such as an old resourceVersion."""

    params: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The call is executed and the connection reset instead of an answer."""


@dataclass(frozen=True, slots=True)
class After:
    """The call is executed, then ``action`` runs (in the proxy's thread; it may block), then the answer is given.

    With ``answer=False`` the connection is reset instead: with a SIGKILL as action, the program dies knowing nothing.
    """

    action: Callable[[], object]
    answer: bool = False


@dataclass(frozen=True, slots=True)
class Mute:
    """Watches stay open and say nothing, not even that they ended: what happens meanwhile is lost to them."""


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """A watch begins, and its first event is an ERROR."""

    code: int
    reason: str = ""

    def line(self) -> bytes:
        """The event."""
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code, "reason": self.reason}
        return (
            json.dumps({"type": "ERROR", "object": {**status, "message": "said by the test's proxy"}}).encode() + b"\n"
        )


@dataclass(frozen=True, slots=True)
class EventFault:
    """Base of faults that count single events of watches; bookmarks are left alone unless asked for."""

    types: frozenset[str] = frozenset({"ADDED", "MODIFIED", "DELETED"})


@dataclass(frozen=True, slots=True)
class DropEvent(EventFault):
    """The event never arrives."""


@dataclass(frozen=True, slots=True)
class DuplicateEvent(EventFault):
    """The event arrives twice."""


@dataclass(frozen=True, slots=True)
class ReorderEvent(EventFault):
    """The event arrives after the one that follows it on the same watch."""


@dataclass(frozen=True, slots=True)
class DelayEvent(EventFault):
    """The event, and what follows on the same watch, arrives later."""

    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class CutInMidEvent(EventFault):
    """Half of the event arrives, and the stream ends."""


Effect = Refuse | Say | Cut | Hang | Delay | Rewrite | LoseAnswer | After | Mute | ErrorEvent | EventFault


@dataclass(slots=True)
class Fault:
    """``effect`` on matching calls (or events), after the first ``skip`` of them, ``times`` times (None: always)."""

    match: Match
    effect: Effect
    skip: int = 0
    times: int | None = 1
    seen: int = 0
    applied: int = 0
    removed: bool = field(default=False)

    def takes(self, call: ApiCall) -> bool:
        """Whether the fault acts now; counts the call."""
        if self.removed or not self.match(call):
            return False
        self.seen += 1
        if self.seen <= self.skip or (self.times is not None and self.applied >= self.times):
            return False
        self.applied += 1
        return True

    def takes_event(self, call: ApiCall, event: Mapping[str, Any]) -> bool:
        """Whether the fault acts on this event of a watch; counts the event."""
        effect = self.effect
        return isinstance(effect, EventFault) and event.get("type") in effect.types and self.takes(call)

    def remove(self) -> None:
        """It acts no longer; what hangs because of it goes on."""
        self.removed = True
