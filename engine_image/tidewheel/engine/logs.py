"""JSON logs: one line per event with ts, level, logger, msg and whatever fields the call names in `extra`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import orjson

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class Throttle:
    """At most `most` lines in `period` seconds: a thousand failures at once must not fill a disk with their names."""

    def __init__(self, *, most: int, period: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._period = period
        self._clock = clock
        self._began = clock()
        self._num_lines = self._num_left_out = 0

    def admit(self) -> int | None:
        """How many lines were left out before this one; None: leave this one out too."""
        now = self._clock()
        if now - self._began >= self._period:
            self._began, self._num_lines = now, 0
        if self._num_lines >= self._most:
            self._num_left_out += 1
            return None
        self._num_lines += 1
        left_out, self._num_left_out = self._num_left_out, 0
        return left_out


def set_up_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.access").disabled = True
