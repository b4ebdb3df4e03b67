"""What the parts of one exchange share: the process around it, and what has come of the request so far."""

import asyncio
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from tidewheel.gateway.accounting import Record
from tidewheel.gateway.admission.desk import Desk, Visit
from tidewheel.gateway.metrics import Metrics
from tidewheel.gateway.observation import ReplyObserver
from tidewheel.gateway.peers.region import Regions
from tidewheel.gateway.placement.placing import Placement
from tidewheel.gateway.replies.book import (
    ReplyBook,
)
from tidewheel.gateway.replies.pacing import Pacer
from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.replies.stores.sharing import Sharing
from tidewheel.gateway.requests import Request
from tidewheel.gateway.routing import Router
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.silence import SilenceWatch
from tidewheel.gateway.tracing import RequestTrace, Tracing


def new_request_id(prefix: str = "req-") -> str:
    """Unique; never a client's own, which could be anything."""
    return prefix + secrets.token_hex(12)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every exchange of a process shares."""

    settings: Settings
    router: Router
    metrics: Metrics
    authorization: Callable[[], bytes | None]
    now: Callable[[], datetime]
    rng: random.Random
    desk: Desk
    placement: Placement
    book: ReplyBook
    pacer: Pacer
    shared: Sharing | None = None
    regions: Regions | None = None
    tracing: Tracing | None = None


@dataclass(slots=True)
class Work:
    """One request for inference. ``id`` is its reply's id."""

    id: str
    request: Request
    around: Surroundings
    record: Record
    observer: ReplyObserver
    loop: asyncio.AbstractEventLoop
    reply: Reply | None = None
    silence: SilenceWatch | None = None
    visit: Visit | None = None
    trace: RequestTrace | None = None
