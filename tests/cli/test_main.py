"""The front door: what there is, and how fast it says so."""

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tidewheel.cli.main import COMMANDS, cli


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    """Slow packages make slow help: none of them may be loaded."""
    code = (
        "import sys, json; from click.testing import CliRunner; from tidewheel.cli.main import cli\n"
        "result = CliRunner().invoke(cli, ['--help']); loaded = sorted(sys.modules)\n"
        "print(json.dumps([result.output, loaded]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    output, loaded = json.loads(done.stdout)
    assert all(name in output for name in COMMANDS)
    assert not {"rich", "aiohttp", "pydantic", "yaml", "cryptography", "asyncio"} & set(loaded)


def test_the_rollback_plugin_explains_itself_without_an_api_client() -> None:
    code = (
        "import sys, json; from tidewheel.cli.rollback.command import run\n"
        "try: run(['--help'])\n"
        "except SystemExit: print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "kubectl rollback chat" in done.stdout
    assert not {"aiohttp", "pydantic", "yaml", "asyncio", "click", "rich"} & set(loaded)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_teaches_by_example(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    if not isinstance(command, click.Group):
        assert "Example" in result.output


def test_version_names_what_is_installed() -> None:
    result = CliRunner().invoke(cli, ["version"])
    assert result.exit_code == 0
    assert "API tidewheel.dev/v1alpha1" in result.output
    assert "engine" in result.output
