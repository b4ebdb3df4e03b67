"""Faults between a program and the real API server. Nothing here imitates it: what is not broken passes through.

``TcpProxy`` breaks connections and leaves TLS, and so the program's own identity, alone::

    with TcpProxy(plane.url) as proxy:            # give proxy.url to the program
        proxy.stall()                             # half-open; also refuse(), reset(), heal()

``ApiProxy`` understands the API. Programs talk plain HTTP to it (``write_kubeconfig`` or ``access``), it talks to the
API server as the identity it was given, counts every call, and breaks the ones that match::

    with ApiProxy(load_access(kubeconfig=plane.kubeconfig)) as proxy:
        program = start("--kubeconfig", proxy.write_kubeconfig(tmp_path / "kubeconfig"))

        # SIGKILL after the k-th write: it was executed, and the program dies before it reads the answer.
        proxy.inject(WRITES, After(program.kill), skip=k - 1)
        # How many writes a scenario has, to run it once for each k:
        proxy.executed_writes()
        # The answer of the 3rd write is lost; the program lives.
        proxy.inject(WRITES, LoseAnswer(), skip=2)
        # Every list and watch of pods is refused until the fault is removed.
        fault = proxy.inject(calls("list", "watch", resource="pods"), Refuse(503), times=None)
        fault.remove()
        # Others: Refuse(429, retry_after=1), Say(b"<html>"), Cut(), Hang(), Delay(0.5), Rewrite({"limit": "1"}).

        # Watches: the next DELETED event of pods never arrives.
        proxy.inject(calls("watch", resource="pods"), DropEvent(frozenset({"DELETED"})))
        # Others: DuplicateEvent(), ReorderEvent(), DelayEvent(seconds=2), CutInMidEvent(), ErrorEvent(410).
        # All watches stay open and silent until removed (times does not matter):
        proxy.inject(calls("watch"), Mute())
        # All open watches are reset:
        proxy.break_streams(calls("watch"))

``skip`` and ``times`` count matching calls (matching events for event faults) from when the fault was put in place.
``WRITES`` leaves out leases and Events; ``ALL_WRITES`` does not. ``proxy.calls`` is everything seen, in order of
arrival; ``proxy.seen(match)`` a part of it. With no fault in place every test must pass through the proxy unchanged.

Both run in threads of their own and are plain context managers, for asynchronous and synchronous tests alike.
"""

from tests.faults.api_calls import ALL_WRITES, WRITES, ApiCall, Match, calls
from tests.faults.api_faults import (
    After,
    Cut,
    CutInMidEvent,
    Delay,
    DelayEvent,
    DropEvent,
    DuplicateEvent,
    ErrorEvent,
    Fault,
    Hang,
    LoseAnswer,
    Mute,
    Refuse,
    ReorderEvent,
    Rewrite,
    Say,
)
from tests.faults.api_proxy import ApiProxy
from tests.faults.tcp_proxy import Link, TcpProxy

__all__ = [
    "ALL_WRITES",
    "WRITES",
    "After",
    "ApiCall",
    "ApiProxy",
    "Cut",
    "CutInMidEvent",
    "Delay",
    "DelayEvent",
    "DropEvent",
    "DuplicateEvent",
    "ErrorEvent",
    "Fault",
    "Hang",
    "Link",
    "LoseAnswer",
    "Match",
    "Mute",
    "Refuse",
    "ReorderEvent",
    "Rewrite",
    "Say",
    "TcpProxy",
    "calls",
]
