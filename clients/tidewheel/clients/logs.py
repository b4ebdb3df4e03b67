"""JSON logs: one line per event, with the fields that were given as ``extra``."""

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``{"ts", "level", "logger", "msg", ...extra fields, "exc"}``; a field that is not JSON is written as its repr."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        entry: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        entry |= {key: value for key, value in vars(record).items() if key not in _STANDARD and key not in entry}
        if record.exc_info:
            entry["exc"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def configure_logging(*, level: str = "INFO", stream: TextIO | None = None) -> None:
    """All loggers of this process write JSON lines to ``stream`` (stderr by default)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
