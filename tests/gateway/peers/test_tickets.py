"""What gateways of different regions believe of each other."""

from dataclasses import replace
from pathlib import Path

import pytest

from tidewheel.gateway.errors import GatewayError
from tidewheel.gateway.peers.outlook import decode, encode
from tidewheel.gateway.peers.region import PeerError, regions_of
from tidewheel.gateway.peers.tickets import PeerKeyError, Signer, SpillTicket, body_hash
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import VersionKey

BODY = b'{"model": "chat"}'
TICKET = SpillTicket("here", 100.0, "req-1", "alice", "paid", background=False, version="v1", body=body_hash(BODY))
OURS = Signer(b"k" * 32)


def test_a_ticket_says_what_was_signed() -> None:
    assert OURS.read(OURS.sign(TICKET), body=BODY, now=129.0) == TICKET


@pytest.mark.parametrize(
    ("value", "body", "now", "why"),
    [
        (Signer(b"x" * 32).sign(TICKET), BODY, 100.0, "not signed"),
        (OURS.sign(TICKET)[:-1], BODY, 100.0, "not signed"),
        (b"e30." + OURS._seal(b"e30."), BODY, 100.0, "not signed"),
        (b"e30=." + OURS._seal(b"e30="), BODY, 100.0, "does not understand"),
        (b"", BODY, 100.0, "not signed"),
        (OURS.sign(TICKET), b"{}", 100.0, "another request"),
        (OURS.sign(TICKET), BODY, 131.0, "too old"),
        (OURS.sign(TICKET), BODY, 69.0, "clocks"),
        (OURS.sign(replace(TICKET, tier="paid")).replace(b".", b"A."), BODY, 100.0, "not signed"),
    ],
    ids=["other-key", "cut", "other-claims", "other-format", "empty", "other-body", "old", "future", "changed"],
)
def test_whatever_else_comes_is_refused(value: bytes, body: bytes, now: float, why: str) -> None:
    with pytest.raises(GatewayError, match=why) as caught:
        OURS.read(value, body=body, now=now)
    assert (caught.value.status, caught.value.code) == (403, "spill_refused")


def test_waits_come_over_as_they_were_told() -> None:
    key = VersionKey("shop", "chat", "v1")
    assert decode(encode([(key, {"paid": 0.0, "free": 1.5})])) == {("shop/chat", "v1"): {"paid": 0.0, "free": 1.5}}
    for nonsense in (b"", b"[]", b'{"waits": 1}', b'{"waits": [1, {"seconds": 2}]}'):
        assert decode(nonsense) == {}
    odd = b'{"waits": [{"model": "a/b", "version": "v", "seconds": {"paid": -1, "free": true, "x": 1}}]}'
    assert decode(odd) == {("a/b", "v"): {}}


@pytest.mark.parametrize("peers", ["eu", "eu=https://h:1", "eu=http://h:1/path", "eu=http://h:x", "=http://h:1"])
def test_a_bad_list_of_peers_is_refused_with_its_entry(peers: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    with pytest.raises(PeerError, match="region=http://host:port"):
        regions_of(Settings(peers=peers, peer_key_file=key), wall=lambda: 0.0)


def test_peers_need_a_key_of_some_length(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="--peer-key-file"):
        regions_of(Settings(peers="eu=http://h:1"), wall=lambda: 0.0)
    key = tmp_path / "key"
    key.write_bytes(b"short")
    with pytest.raises(PeerKeyError, match="16 bytes"):
        regions_of(Settings(peer_key_file=key), wall=lambda: 0.0)
    key.write_bytes(b"k" * 32)
    with pytest.raises(PeerError, match="each region once"):
        regions_of(Settings(peers="eu=http://a:1,eu=http://b:1", peer_key_file=key), wall=lambda: 0.0)
