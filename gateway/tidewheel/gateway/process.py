"""What every process of the gateway does alike: wait for its end, and keep the collector from pausing it."""

import asyncio
import gc
import resource
import signal
import sys

_SWITCH_SECONDS = 0.001


def raise_file_limit() -> None:
    """As many open connections as the system allows: two for each stream."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_memory() -> None:
    """Start-up garbage is never looked at again; a thread that renders metrics gives way to the loop quickly."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_SECONDS)


async def wait_for_stop() -> signal.Signals:
    """The first SIGTERM or SIGINT; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[signal.Signals] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        if stopped.done():
            loop.remove_signal_handler(number)
            signal.raise_signal(number)
        else:
            stopped.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return await stopped
