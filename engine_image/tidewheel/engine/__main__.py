"""python -m tidewheel.engine: exit codes 0 drained, 1 died, 2 usage, 3 cannot start and a retry will not help."""

from __future__ import annotations

import os
import signal
import sys

from tidewheel.engine.errors import StartError
from tidewheel.engine.settings import DEFAULT_TERMINATION_LOG, parse_settings


def main() -> int:
    termination_log = DEFAULT_TERMINATION_LOG
    # Process 1 of a container ignores SIGTERM unless told otherwise; before anything is served, nothing needs draining.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        settings = parse_settings()
        termination_log = settings.termination_log
        from tidewheel.engine.logs import set_up_logging

        set_up_logging(settings.log_level)
        import uvloop

        from tidewheel.engine.assembly import SimulatedCrash
        from tidewheel.engine.server import report_start_error, serve

        # The step loop and the event loop share the interpreter; at the default of 5 ms each would wait for the other.
        sys.setswitchinterval(0.0002)
        try:
            return uvloop.run(serve(settings))
        except SimulatedCrash:
            report_start_error(StartError("crashed while starting, as --fault start-crash asks."), termination_log)
            return 1
    except StartError as error:
        from tidewheel.engine.server import report_start_error

        report_start_error(error, termination_log)
        return 3


if __name__ == "__main__":
    sys.exit(main())
