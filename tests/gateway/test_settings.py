"""Settings that cannot work are refused with a sentence before anybody is served."""

import json
from pathlib import Path

import pytest

from tidewheel.clients.errors import AccessError
from tidewheel.gateway.credentials import EngineToken, TokenFileError
from tidewheel.gateway.program import Program
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import SnapshotError

PORTS = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
CAUSE = {"actor": "a", "reason": "R", "at": "2026-01-01T00:00:00Z"}


def one_table(targets: list[dict[str, object]]) -> str:
    """A file with one table."""
    return json.dumps(
        {"tables": [{"metadata": {"name": "chat"}, "spec": {"model": "chat", "cause": CAUSE, "targets": targets}}]}
    )


FILES = {
    "not JSON": ("{", "unexpected end"),
    "a list": ("[]", "expected"),
    "wrong sum": (
        one_table([{"version": "v1", "weight": 9999, "digest": "d"}]),
        "RoutingTable default/chat: weights of targets sum to 9999 of 10000 basis points",
    ),
    "no targets": (one_table([]), "spec.targets"),
    "odd endpoint": ('{"tables":[],"endpoints":{"default/chat/v1":["nowhere"]}}', "neither HOST:PORT nor"),
    "endpoint of nothing": ('{"tables":[],"endpoints":{"default/chat-v1":["a:1"]}}', "of a table in this file"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_routing_file_is_named_and_explained(name: str, tmp_path: Path) -> None:
    text, sentence = FILES[name]
    path = tmp_path / "routing.json"
    path.write_text(text)
    with pytest.raises(SnapshotError, match=str(path)) as caught:
        Program(Settings.from_arguments([*PORTS, "--static", str(path)]))
    assert sentence in str(caught.value)


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="nowhere"):
        Program(Settings.from_arguments([*PORTS, "--kubeconfig", str(tmp_path / "nowhere")]))


def test_a_token_file_must_be_there_at_start_and_may_change_later(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", [0.0]
    with pytest.raises(TokenFileError, match="mount the Secret or leave the flag out"):
        EngineToken(path)
    path.write_text(" ")
    with pytest.raises(TokenFileError, match="is empty"):
        EngineToken(path)
    path.write_text("one\n")
    token = EngineToken(path, clock=lambda: clock[0])
    path.write_text("two\n")
    assert token() == b"Bearer one"
    clock[0] = 10.0
    assert token() == b"Bearer two"
    path.unlink()
    clock[0] = 20.0
    assert token() == b"Bearer two"


@pytest.mark.parametrize("arguments", [["--port", "x"], ["--no-such-flag"], ["--workers"]], ids=" ".join)
def test_a_bad_command_line_ends_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Settings.from_arguments(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_worker_gets_the_settings_of_its_parent() -> None:
    settings = Settings.from_arguments(
        ["--port", "1", "--static", "/a b", "--no-access-log", "--connect-timeout", "0.5"]
    )
    assert Settings.from_arguments(settings.to_arguments()) == settings
    assert settings.namespaces == ("default",)
    assert Settings(namespace="a", serving_namespaces="b, a,").namespaces == ("b", "a")
