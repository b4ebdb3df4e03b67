"""One JSON object per line, whatever is logged."""

import json
import logging
from collections.abc import Callable

import pytest

from tidewheel.clients.logs import JsonFormatter

Format = Callable[..., dict[str, object]]


@pytest.fixture
def formatted() -> Format:
    """A record as it would be written."""

    def write(
        message: str, *arguments: object, error: BaseException | None = None, **extra: object
    ) -> dict[str, object]:
        exc_info = (type(error), error, error.__traceback__) if error else None
        logger = logging.getLogger("tidewheel.test")
        record = logger.makeRecord(logger.name, logging.WARNING, "f", 1, message, arguments, exc_info, extra=extra)
        line = JsonFormatter().format(record)
        assert "\n" not in line
        parsed: dict[str, object] = json.loads(line)
        return parsed

    return write


def test_fields_stand_beside_the_message(formatted: Format) -> None:
    entry = formatted("served %d tokens", 5, request_id="r1", model="chat")
    assert entry["ts"].endswith("Z")  # type: ignore[attr-defined]
    assert {key: value for key, value in entry.items() if key != "ts"} == {
        "level": "warning",
        "logger": "tidewheel.test",
        "msg": "served 5 tokens",
        "request_id": "r1",
        "model": "chat",
    }


def test_a_field_that_is_no_json_is_written_as_its_repr(formatted: Format) -> None:
    assert formatted("x", key=("a", "b"), thing={1: object})["thing"] == {"1": "<class 'object'>"}


def test_newlines_and_exceptions_stay_on_one_line(formatted: Format) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        entry = formatted("a\nb", error=error)
    assert entry["msg"] == "a\nb"
    assert "ValueError: two\nlines" in str(entry["exc"])


def test_a_field_cannot_forge_the_level(formatted: Format) -> None:
    assert formatted("x", level="critical")["level"] == "warning"
