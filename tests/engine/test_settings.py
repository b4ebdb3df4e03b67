"""The command line and what is refused before anything is loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tidewheel.engine.artifact import resolve_model
from tidewheel.engine.errors import StartError
from tidewheel.engine.faults import Faults
from tidewheel.engine.settings import parse_settings, quantity
from tidewheel.engine.simulated import StepTime


@pytest.mark.parametrize(
    ("text", "number"), [("512Mi", 512 << 20), ("2Gi", 2 << 30), ("1.5Gi", 3 << 29), ("1000", 1000), ("3M", 3_000_000)]
)
def test_memory_is_written_as_in_kubernetes(text: str, number: int) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "m", "--kv-memory", "lots"],
        ["--model", "m", "--kv-memory", "0"],
        ["--model", "m", "--max-model-len", "0"],
        ["--model", "m", "--max-model-len", "-1"],
        ["--model", "m", "--dtype", "int3"],
        ["--model", "m", "--runner", "magic"],
        ["--model", "m", "--hang-timeout", "nan"],
        ["--model", "m", "--unknown", "1"],
        [],
    ],
    ids=" ".join,
)
def test_a_bad_command_line_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_settings(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_faults_are_for_the_simulated_runner_only() -> None:
    with pytest.raises(StartError, match="simulated"):
        parse_settings(["--model", "m", "--fault", "slow:2"])


def test_the_simulated_runner_is_never_the_default() -> None:
    assert parse_settings(["--model", "m"]).runner == "torch"


def test_the_default_lane_must_exist() -> None:
    with pytest.raises(StartError, match="gold"):
        parse_settings(["--model", "m", "--default-lane", "gold"])


def test_faults_parse() -> None:
    assert Faults.parse(["slow:2.5", "error:0.1", "crash"]) == Faults(slow=2.5, error=0.1, crash=0)
    assert Faults.parse(["hang:3", "error-after:2", "not-ready"]) == Faults(hang=3, error_after=2, not_ready=True)


@pytest.mark.parametrize(
    "text", ["melt", "slow", "slow:x", "stall:0", "slower:0", "error-after", "start-crash:1", "crash:-1", "slow:-1"]
)
def test_an_unknown_fault_is_refused(text: str) -> None:
    with pytest.raises(StartError, match="--fault"):
        Faults.parse([text])


@pytest.mark.parametrize("text", ["", "1,2", "a,b,c", "1,2,-3", "1,2,3,4"])
def test_a_bad_step_time_is_refused(text: str) -> None:
    with pytest.raises(StartError, match="--step-time"):
        StepTime.parse(text)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"gone\.gguf does not exist"):
        resolve_model(str(tmp_path / "gone.gguf"), sha256=None, needs_file=False)


def test_a_file_uri_and_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "a model.gguf"
    file.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    uri = f"file://{tmp_path}/a%20model.gguf"
    assert resolve_model(uri, sha256=digest.upper(), needs_file=True).path == file
    with pytest.raises(StartError, match=digest):
        resolve_model(uri, sha256="0" * 64, needs_file=True)
    with pytest.raises(StartError, match="64 hexadecimal digits"):
        resolve_model(uri, sha256="abc", needs_file=True)


def test_a_folder_has_one_digest(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    listing = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in (("a", b"1"), ("b", b"2")))
    digest = hashlib.sha256(listing.encode()).hexdigest()
    assert resolve_model(str(tmp_path), sha256=digest, needs_file=True).path == tmp_path


def test_an_unsupported_scheme_is_refused() -> None:
    with pytest.raises(StartError, match="s3://"):
        resolve_model("s3://bucket/model", sha256=None, needs_file=True)


def test_a_plain_name_is_enough_for_the_simulated_runner_only() -> None:
    assert resolve_model("demo", sha256=None, needs_file=False).name == "demo"
    with pytest.raises(StartError, match="no such model"):
        resolve_model("demo", sha256=None, needs_file=True)
