"""Settings: flags, environment, and sentences for what cannot be used."""

from pathlib import Path

import pytest

from tidewheel.operator.errors import SettingsError
from tidewheel.operator.settings import parse_settings


def test_flags_come_before_the_environment_and_that_before_defaults() -> None:
    found = parse_settings(
        ["--serving-namespaces=a, b", "--lease-seconds=20"],
        {"TIDEWHEEL_OPERATOR_LEASE_SECONDS": "30", "TIDEWHEEL_OPERATOR_WORKERS": "2"},
    )
    assert found.serving_namespaces == ("a", "b")
    assert found.lease_seconds == 20
    assert found.workers == 2
    assert found.kubeconfig is None


def test_in_cluster_may_be_said_and_is_the_default() -> None:
    assert parse_settings(["--kubeconfig=in-cluster"], {}).kubeconfig is None
    assert parse_settings(["--kubeconfig=/x"], {}).kubeconfig == Path("/x")


def test_two_operators_have_two_identities() -> None:
    assert parse_settings([], {}).identity != parse_settings([], {}).identity


BAD = {
    "not a number": (["--workers=many"], "--workers many"),
    "negative": (["--list-seconds=-1"], "--list-seconds -1"),
    "deadline beyond the lease": (["--renew-deadline-seconds=20"], "--renew-deadline-seconds"),
    "no worker": (["--workers=0"], "--workers"),
    "no token file": (["--engine-token-file=/nowhere/token"], "/nowhere/token"),
}


@pytest.mark.parametrize(("flags", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_named(flags: list[str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse_settings(flags, {})


def test_help_tells_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--help"], {})
    told = capsys.readouterr().out
    assert "--watch-silence-seconds" in told
    assert "TIDEWHEEL_OPERATOR_LEASE_SECONDS" in told
