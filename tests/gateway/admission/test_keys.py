"""Who may ask: keys of a file, typed refusals, and changes of the file under way."""

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from tidewheel.gateway.admission.keyfile import KeyFile, identify_by
from tidewheel.gateway.admission.keys import KeyFileError, parse_keys
from tidewheel.gateway.errors import GatewayError

NOW = datetime(2026, 11, 30, tzinfo=UTC)
KEY = "sk-tw-alice-0123456789"


def entry(key: str = KEY, **fields: Any) -> dict[str, Any]:
    return {"id": "a", "sha256": sha256(key.encode()).hexdigest(), "user": "alice", "tier": "paid", **fields}


def file_of(*entries: dict[str, Any]) -> bytes:
    return orjson.dumps({"keys": list(entries)})


def test_a_key_names_its_user_and_tier() -> None:
    found = parse_keys(file_of(entry())).principal(f"Bearer {KEY}".encode(), now=NOW)
    assert (found.user, found.tier, found.key_id) == ("alice", "paid", "a")
    assert "alice" not in found.tenant


REFUSED = {
    "no header": (None, {}, 401, "missing_key"),
    "unknown": (b"Bearer sk-tw-nobody-0123456789", {}, 401, "invalid_api_key"),
    "other scheme": (b"Basic " + KEY.encode(), {}, 401, "invalid_api_key"),
    "short": (b"Bearer x", {}, 401, "invalid_api_key"),
    "huge": (b"Bearer " + b"x" * 10_000, {}, 401, "invalid_api_key"),
    "expired": (f"bearer {KEY}".encode(), {"expiresAt": "2026-11-29T00:00:00Z"}, 401, "key_expired"),
    "disabled": (f"Bearer {KEY}".encode(), {"disabled": True}, 403, "key_disabled"),
}


@pytest.mark.parametrize(("header", "fields", "status", "code"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_typed(header: bytes | None, fields: dict[str, Any], status: int, code: str) -> None:
    with pytest.raises(GatewayError) as refused:
        parse_keys(file_of(entry(**fields))).principal(header, now=NOW)
    assert (refused.value.status, refused.value.code) == (status, code)
    assert KEY not in refused.value.message


def test_a_key_for_some_models_opens_no_other() -> None:
    found = parse_keys(file_of(entry(models=["chat"]))).principal(f"Bearer {KEY}".encode(), now=NOW)
    found.require_model("chat")
    with pytest.raises(GatewayError, match="may use: chat") as refused:
        found.require_model("secret-model")
    assert refused.value.status == 403


BAD = {
    "not JSON": (b"{", "not JSON"),
    "a list": (b"[]", "expected"),
    "no digest": (file_of(entry(sha256="abc")), "64 hex digits"),
    "no user": (file_of(entry(user="")), "user must be"),
    "odd tier": (file_of(entry(tier="gold")), "'gold' is none of paid, free, background"),
    "odd moment": (file_of(entry(expiresAt="soon")), "expiresAt 'soon'"),
    "twice": (file_of(entry(), entry(user="bob")), "same sha256"),
}


@pytest.mark.parametrize(("data", "said"), BAD.values(), ids=BAD)
def test_a_bad_file_says_what_to_mend(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(data)
    with pytest.raises(KeyFileError, match=said):
        identify_by(path, poll_seconds=0.0, anonymous_tier="free")


def test_an_unknown_tier_for_everybody_is_refused_at_the_start() -> None:
    with pytest.raises(KeyFileError, match="'gold' is none of"):
        identify_by(None, poll_seconds=0.0, anonymous_tier="gold")


def test_a_changed_file_counts_and_a_broken_one_does_not(tmp_path: Path) -> None:
    path, moment = tmp_path / "keys.json", [0.0]
    path.write_bytes(file_of(entry()))
    keys = KeyFile(path, poll_seconds=5.0, clock=lambda: moment[0], now=lambda: NOW)
    other = "sk-tw-bob-0123456789xyz"
    replace(path, file_of(entry(other, user="bob", tier="free")))
    assert keys(f"Bearer {KEY}".encode()).user == "alice", "not looked at yet"
    moment[0] = 6.0
    assert keys(f"Bearer {other}".encode()).user == "bob"
    with pytest.raises(GatewayError):
        keys(f"Bearer {KEY}".encode())
    replace(path, b"{broken")
    moment[0] = 12.0
    assert keys(f"Bearer {other}".encode()).user == "bob", "the last good keys stay in force"
    path.unlink()
    moment[0] = 18.0
    assert keys(f"Bearer {other}".encode()).user == "bob"


def replace(path: Path, data: bytes) -> None:
    """As the kubelet does: another file under the same name."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)
