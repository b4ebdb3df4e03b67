"""``python -m tidewheel.operator``."""

import asyncio
import logging
import sys

from tidewheel.clients.errors import AccessError
from tidewheel.clients.logs import configure_logging
from tidewheel.operator.errors import SettingsError
from tidewheel.operator.program import Operator
from tidewheel.operator.settings import Settings, parse_settings


async def _run(settings: Settings) -> int:
    return await Operator(settings).run()


def main() -> int:
    """Exit code: 0 told to stop, 1 the Lease was lost and work went on, 2 a setting cannot be used."""
    try:
        settings = parse_settings(sys.argv[1:])
    except SettingsError as error:
        print(f"tidewheel.operator: {error}", file=sys.stderr)
        return 2
    configure_logging(level=settings.log_level)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # it warns that signals are ours
    try:
        return asyncio.run(_run(settings))
    except AccessError as error:
        print(f"tidewheel.operator: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
