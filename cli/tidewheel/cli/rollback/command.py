"""What a person types, and what is printed."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidewheel.cli.errors import CliError

if TYPE_CHECKING:
    from tidewheel.cli.rollback.outcome import Outcome

EXIT_REFUSED: Final = 1
EXIT_UNCONFIRMED: Final = 3

_DESCRIPTION: Final = """\
Sends the traffic of MODEL back to its previous split, now.

It writes the RoutingTable of the model with your own rights; the operator may be down. Versions that lose traffic are
rejected: the operator will not bring them back from Git until they change. Then it asks every gateway what it obeys.
"""
_EPILOG: Final = """\
examples:
  kubectl rollback chat                                back to the split before this one
  kubectl rollback chat --reason "TTFT doubled"        ... and say why: it shows in the table, the Event and status
  kubectl rollback chat --to v41                       all traffic to v41, which must be serving or kept warm
  kubectl rollback chat --dry-run                      what would be written, without writing it
  kubectl rollback chat -n shop -o json                for scripts

exit status:
  0  in force at every gateway, or nothing to do     1  refused or failed, nothing written
  2  wrong arguments                                 3  written, but not every gateway has confirmed in time

needs: get and patch on routingtables; the chart's Role tidewheel-sre has that (value sre.subjects).
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; prints help or a usage error and exits where it is not one."""
    parser = argparse.ArgumentParser(
        prog="kubectl rollback",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="name of the model, as in its RoutingRule")
    parser.add_argument(
        "--to", metavar="VERSION", help="send all traffic to this version instead of the previous split"
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for those who read it later")
    parser.add_argument("--cold", action="store_true", help="allow versions that are not kept warm (requests may fail)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be written, write nothing")
    parser.add_argument("-n", "--namespace", metavar="NS", help="namespace of the model (default: that of the context)")
    parser.add_argument(
        "--gateways-in",
        default="tidewheel-system",
        metavar="NS",
        help="namespace of the gateways (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="seconds to wait for the gateways to obey; 0 does not ask them (default: %(default)g)",
    )
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="default: text")
    parser.add_argument("--context", help="context of the kubeconfig")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: $KUBECONFIG, else ~/.kube/config")
    return parser.parse_args(arguments)


def main() -> None:
    """Entry point of ``kubectl-rollback``."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Exit status of one command line."""
    started = time.monotonic()
    options = parse(arguments)
    # Only now: help and usage errors need no API client.
    from tidewheel.cli.rollback.execution import execute
    from tidewheel.clients.errors import ClientsError

    try:
        outcome = execute(options, started=started)
    except KeyboardInterrupt:
        print("interrupted; `kubectl rollback` again: it does nothing where the write went through", file=sys.stderr)
        return EXIT_REFUSED
    except (CliError, ClientsError) as error:
        print(f"kubectl rollback: {error}", file=sys.stderr)
        return EXIT_REFUSED
    _print(outcome, output=options.output)
    return 0 if outcome.is_confirmed else EXIT_UNCONFIRMED


def _print(outcome: "Outcome", *, output: str) -> None:
    if output == "json":
        import json

        print(json.dumps(outcome.to_wire()))
        return
    for line in outcome.lines():
        print(line)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 600:
        raise argparse.ArgumentTypeError("must be between 0 and 600 seconds")
    return value
