"""`tidewheel`: the commands for people. Each is imported only when it is called, so that help is instant."""

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import click

from tidewheel.cli.errors import CliError


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a command lives, and what the list of commands says of it."""

    module: str
    attribute: str
    summary: str


COMMANDS: Final = {
    "serve": _Entry("tidewheel.cli.serve.command", "serve", "One engine and one gateway here, without a cluster."),
    "chat": _Entry("tidewheel.cli.chat.command", "chat", "Talk to a model, token by token."),
    "status": _Entry("tidewheel.cli.status.command", "status", "Versions, the split in force, what is wrong."),
    "watch": _Entry("tidewheel.cli.rollout.watch", "watch", "A rollout as it goes, until it ends or needs a person."),
    "why": _Entry("tidewheel.cli.why.command", "why", "Every number behind a rollout or a version, and the sentence."),
    "pause": _Entry("tidewheel.cli.rollout.verbs", "pause", "Stop a rollout where it is; a breach still rolls back."),
    "resume": _Entry("tidewheel.cli.rollout.verbs", "resume", "Let a paused rollout go on."),
    "promote": _Entry("tidewheel.cli.rollout.verbs", "promote", "Take a rollout forward without the judge."),
    "retry": _Entry("tidewheel.cli.rollout.verbs", "retry", "Judge a rejected version once more."),
    "cluster": _Entry("tidewheel.cli.cluster.commands", "cluster", "A real local Kubernetes: up, down, status."),
    "demo": _Entry("tidewheel.cli.demo.command", "demo", "The main job, from nothing to a rollback."),
    "plan": _Entry("tidewheel.cli.plan.command", "plan", "GPUs, power and price from users and tokens."),
    "forecast": _Entry("tidewheel.cli.forecast.command", "forecast", "Demand, its forecast and the margin, drawn."),
    "backtest": _Entry("tidewheel.cli.backtest.command", "backtest", "Recorded demand through every scaling policy."),
    "replay": _Entry("tidewheel.cli.replay", "replay", "Judge a rollout's ledger again, with other limits."),
    "version": _Entry("tidewheel.cli.version", "version", "What is installed."),
}
_PEOPLES_ERRORS: Final = (
    ("tidewheel.clients.errors", "ClientsError"),
    ("tidewheel.cli.cluster.errors", "ClusterError"),
    ("tidewheel.rollout.errors", "RolloutError"),
    ("tidewheel.autoscaler.errors", "AutoscalerError"),
)
"""Roots of errors whose messages are meant for people, in packages that only some commands import."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry.module), entry.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}.{entry.attribute} is no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Serve large language models on Kubernetes.

    \b
    First steps:
      tidewheel serve smollm2        a model on this machine, no cluster
      tidewheel chat                 talk to it
      tidewheel demo                 a real local cluster, a canary, a rollback
      kubectl rollback chat          traffic back to the previous version, now
    """


def main() -> None:
    """Entry point of ``tidewheel``: errors meant for people are printed as they are."""
    try:
        cli(prog_name="tidewheel")
    except Exception as error:
        if not _is_for_people(error):
            raise
        click.echo(f"tidewheel: {error}", err=True)
        sys.exit(1)


def _is_for_people(error: Exception) -> bool:
    # A package that was not imported cannot have raised anything.
    imported = [(sys.modules[module], root) for module, root in _PEOPLES_ERRORS if module in sys.modules]
    return isinstance(error, (CliError, *(getattr(module, root) for module, root in imported)))
