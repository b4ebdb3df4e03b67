"""Tokens that change while the program runs."""

import sys
from pathlib import Path

import pytest

from tidewheel.clients.credentials import ExecPlugin, TokenFile
from tidewheel.clients.errors import AccessError


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_token_file_is_read_again_after_a_minute(tmp_path: Path) -> None:
    """kubernetes-client/python#1768: projected tokens rotate hourly."""
    path, clock = tmp_path / "token", Clock()
    path.write_text("one\n")
    credentials = TokenFile(path, clock=clock)
    assert await credentials.token() == "one"
    path.write_text("two\n")
    clock.now += 59
    assert await credentials.token() == "one"
    clock.now += 1
    assert await credentials.token() == "two"


async def test_a_refused_token_is_read_again_at_once(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", Clock()
    path.write_text("one")
    credentials = TokenFile(path, clock=clock)
    await credentials.token()
    path.write_text("two")
    credentials.invalidate()
    assert await credentials.token() == "two"


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_text("")], ids=["gone", "empty"]
)
async def test_the_last_token_serves_while_its_file_is_being_swapped(tmp_path: Path, damage: object) -> None:
    path, clock = tmp_path / "token", Clock()
    path.write_text("one")
    credentials = TokenFile(path, clock=clock)
    await credentials.token()
    assert callable(damage)
    damage(path)
    clock.now += 61
    assert await credentials.token() == "one"


async def test_without_any_token_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="token cannot be read: No such file"):
        await TokenFile(tmp_path / "token").token()
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(AccessError, match="empty is empty"):
        await TokenFile(tmp_path / "empty").token()


def plugin(code: str, clock: Clock | None = None) -> ExecPlugin:
    """A credential plugin that is a line of Python."""
    return ExecPlugin(
        command=(sys.executable, "-c", code),
        environment={"GREETING": "hello"},
        api_version="client.authentication.k8s.io/v1",
        wall_clock=clock or Clock(),
    )


async def test_a_plugin_is_run_once_while_its_token_lives(tmp_path: Path) -> None:
    counter = tmp_path / "runs"
    code = (
        "import json, os, datetime; "
        f"open({str(counter)!r}, 'a').write('x'); "
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'; "
        "at = datetime.datetime.fromtimestamp(2000, datetime.UTC).isoformat().replace('+00:00', 'Z'); "
        "print(json.dumps({'status': {'token': os.environ['GREETING'], 'expirationTimestamp': at}}))"
    )
    clock = Clock()
    credentials = plugin(code, clock)
    assert [await credentials.token() for _ in range(2)] == ["hello", "hello"]
    assert counter.read_text() == "x"
    clock.now = 1980  # within the margin before it expires
    await credentials.token()
    assert counter.read_text() == "xx"
    credentials.invalidate()
    await credentials.token()
    assert counter.read_text() == "xxx"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        pytest.param("raise SystemExit('log in first')", "failed with code 1: log in first", id="fails"),
        pytest.param("print('{}')", "did not print an ExecCredential", id="prints something else"),
        pytest.param("print('{\"status\": {}}')", "gave no token", id="gives no token"),
    ],
)
async def test_a_plugin_that_fails_says_so(code: str, sentence: str) -> None:
    with pytest.raises(AccessError, match=sentence):
        await plugin(code).token()


async def test_a_plugin_that_is_not_installed_is_named() -> None:
    missing = ExecPlugin(command=("no-such-login",), environment={}, api_version="v1")
    with pytest.raises(AccessError, match="no-such-login cannot be started"):
        await missing.token()
