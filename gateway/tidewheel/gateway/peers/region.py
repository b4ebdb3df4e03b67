"""The peers that the settings name, asked for their queues again and again."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tidewheel.gateway.peers.outlook import PATH, Waits, decode
from tidewheel.gateway.peers.tickets import HEADER, Signer, SpillTicket, body_hash
from tidewheel.gateway.placement.reports import fetch
from tidewheel.gateway.placement.spill import Offer
from tidewheel.gateway.replicas import Replica
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.turns import Turns
from tidewheel.gateway.upstream import BrokenError, Pool, UnreachableError

_log = logging.getLogger(__name__)


class PeerError(ValueError):
    """``--peers`` cannot be used; the message names the entry and the way out."""


@dataclass(slots=True)
class Peer:
    """One gateway, or the load balancer of several. ``replica`` counts what we have open there."""

    region: str
    replica: Replica
    waits: Waits = field(default_factory=dict)
    heard_at: float = float("-inf")


def parse_peers(text: str, make_pool: Callable[[str, int], Pool]) -> list[Peer]:
    """From ``region=http://host:port, ...``. Raises PeerError."""
    peers = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        region, _, url = entry.partition("=")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            parts, host, port = urlsplit(""), None, 0
        if not region or parts.scheme != "http" or host is None or parts.path not in ("", "/"):
            message = f"--peers: '{entry}' is not region=http://host:port; TLS between regions is the mesh's to add"
            raise PeerError(message)
        peers.append(Peer(region, Replica(f"peer:{region}", make_pool(host, port), is_engine=False)))
    if len({peer.region for peer in peers}) < len(peers):
        raise PeerError("--peers: two entries have the same region; name each region once")
    return peers


class Regions:
    """One per process."""

    def __init__(
        self, settings: Settings, signer: Signer, *, own: str, peers: Sequence[Peer], wall: Callable[[], float]
    ) -> None:
        """``on_heard`` hears of each peer whether it tells its queues."""
        self._settings = settings
        self._signer = signer
        self._own = own
        self._wall = wall
        self.on_heard: Callable[[str, bool], object] = lambda region, heard: None
        self._peers = {peer.region: peer for peer in peers}

    async def run(self) -> None:
        """Ask each peer, until cancelled; one that does not answer delays no other."""
        async with asyncio.TaskGroup() as group:
            for peer in self._peers.values():
                group.create_task(self._ask_on(peer))

    def offers(self, model: str, version: str, lane: str, *, now: float) -> list[Offer]:
        """Of the peers that were heard lately and serve the version.

        What goes there between two of its answers is not in them: at most ``--peer-poll-seconds`` worth of requests.
        """
        oldest = now - self._settings.peer_stale_seconds
        found = []
        for peer in self._peers.values():
            wait = peer.waits.get((model, version), {}).get(lane)
            if wait is not None and peer.heard_at >= oldest and not peer.replica.hindrance(now):
                found.append(Offer(peer.region, wait))
        return found

    def peer(self, region: str) -> Peer:
        """By name."""
        return self._peers[region]

    def ticket(
        self, *, request_id: str, user: str, tier: str, background: bool, version: str, body: str
    ) -> SpillTicket:
        """From here, now."""
        return SpillTicket(self._own, self._wall(), request_id, user, tier, background, version, body)

    def header(self, ticket: SpillTicket) -> bytes:
        """A line for the request's head."""
        return HEADER + b": " + self._signer.sign(ticket)

    def read(self, value: bytes, *, body: bytes) -> SpillTicket:
        """A ticket that came with a request. Raises GatewayError 403."""
        return self._signer.read(value, body=body, now=self._wall())

    async def _ask_on(self, peer: Peer) -> None:
        loop, settings = asyncio.get_running_loop(), self._settings
        while True:
            heard = False
            with contextlib.suppress(UnreachableError, BrokenError, TimeoutError):
                async with asyncio.timeout(settings.peer_timeout):
                    ticket = self.ticket(
                        request_id="", user="", tier="", background=False, version="", body=body_hash(b"")
                    )
                    status, body = await fetch(peer.replica.pool, PATH, self.header(ticket))
                if status == 200:
                    peer.waits, peer.heard_at, heard = decode(body), loop.time(), True
                else:
                    _log.warning("a peer does not tell its queues", extra={"region": peer.region, "status": status})
            self.on_heard(peer.region, heard)
            await asyncio.sleep(settings.peer_poll_seconds)


def regions_of(settings: Settings, *, wall: Callable[[], float], turns: Turns | None = None) -> Regions | None:
    """None where neither peers nor a key are set. Raises PeerError, PeerKeyError or OSError."""
    if settings.peer_key_file is None:
        if settings.peers:
            raise PeerError("--peers needs --peer-key-file: requests that go to a peer are signed")
        return None
    signer = Signer.from_file(settings.peer_key_file)
    peers = parse_peers(settings.peers, lambda host, port: Pool(host, port, settings=settings, turns=turns))
    return Regions(settings, signer, own=settings.region, peers=peers, wall=wall)
