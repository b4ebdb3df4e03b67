"""Prometheus' query API, as little of it as programs of ours ask: queries at an explicit moment, or over a past span.

Through `PrometheusConnect`, whose `custom_query` returns the samples and drops the rest of the answer. The rest matters
to a judge: a warning says that the answer may lack a part, and the `Date` header whether both clocks agree. A hook of
the session keeps them.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar, TypeVarTuple, cast

import orjson
import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect

from tidewheel.clients.errors import ClientsError

_WORDS_LIMIT: Final = 300
_Asked = TypeVarTuple("_Asked")
_Given = TypeVar("_Given")


class PrometheusError(ClientsError):
    """No usable answer: unreachable, too slow, an error status, or not what the API promises."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series at the asked moment. ``value`` may be NaN or infinite: Prometheus says so where it is."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a query gave. ``clock_ahead``: seconds by which the provider's clock is ahead of ours; None: not said."""

    samples: tuple[Sample, ...]
    warnings: tuple[str, ...] = ()
    clock_ahead: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SeriesPoints:
    """One series over a span: (moment, value) where there is one; a moment without a value is left out."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class _Kept(threading.local):
    """What the hook saw last, in the thread that asked: a session is not made for two threads."""

    def __init__(self) -> None:
        self.connection: PrometheusConnect | None = None
        self.warnings: Sequence[str] = ()
        self.date: str | None = None


class Prometheus:
    """Instant queries, at most ``threads`` at once; each is given up after ``timeout_seconds``."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 5.0,
        threads: int = 4,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout = timeout_seconds
        self._headers = dict(headers) if headers else None
        self._kept = _Kept()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="prometheus")

    def close(self) -> None:
        """Ask no more; threads that wait for an answer end with their timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def instant(self, query: str, *, at: float) -> Answer:
        """The query's value at ``at``, in seconds since the epoch. Raises PrometheusError."""
        return await self._in_thread(self._ask, query, at)

    async def span(self, query: str, *, start: int, end: int, step_seconds: int) -> tuple[SeriesPoints, ...]:
        """The query's values at ``start``, a step later, and so on until ``end``. Raises PrometheusError.

        Prometheus gives at most 11,000 points of a series at once.
        """
        return await self._in_thread(self._ask_span, query, start, end, step_seconds)

    async def _in_thread(self, ask: Callable[[*_Asked], _Given], *asked: *_Asked) -> _Given:
        future = asyncio.get_running_loop().run_in_executor(self._threads, ask, *asked)
        try:
            # Twice: the thread's own bound is per wait for bytes, and it may have to queue for a thread.
            return await asyncio.wait_for(future, 2 * self._timeout)
        except TimeoutError:
            raise PrometheusError(f"{self.url} gave no answer in {2 * self._timeout:g} s") from None

    def _ask_span(self, query: str, start: int, end: int, step_seconds: int) -> tuple[SeriesPoints, ...]:
        with self._as_errors():
            ask: Any = self._connected().custom_query_range
            moments = (datetime.fromtimestamp(at, UTC) for at in (start, end))
            result = ask(query, *moments, str(step_seconds), timeout=self._timeout)
            return tuple(_points(item) for item in result)

    def _ask(self, query: str, at: float) -> Answer:
        began = time.monotonic()
        kept = self._kept
        kept.warnings, kept.date = (), None
        with self._as_errors():
            ask: Any = self._connected().custom_query
            result = ask(query, params={"time": f"{at:.3f}"}, timeout=self._timeout)
            samples = tuple(_sample(item) for item in result)
        return Answer(
            samples=samples,
            warnings=tuple(kept.warnings),
            clock_ahead=_clock_ahead(kept.date, now=time.time()),
            seconds=time.monotonic() - began,
        )

    @contextmanager
    def _as_errors(self) -> Iterator[None]:
        try:
            yield
        except (requests.RequestException, PrometheusApiClientException) as error:
            raise PrometheusError(f"{self.url}: {_short(error)}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PrometheusError(f"{self.url} did not answer as Prometheus does: {_short(error)}") from error

    def _connected(self) -> PrometheusConnect:
        if self._kept.connection is None:
            self._kept.connection = self._connect()
        return self._kept.connection

    def _connect(self) -> PrometheusConnect:
        session = requests.Session()
        session.hooks["response"].append(self._keep)
        connect: Any = (
            PrometheusConnect  # its signature says int where requests takes float, and dict where None is due
        )
        return cast("PrometheusConnect", connect(self.url, self._headers, retry=0, session=session))

    def _keep(self, response: requests.Response, *_: Any, **__: Any) -> None:
        self._kept.date = response.headers.get("Date")
        if response.status_code != 200:
            return
        body = orjson.loads(response.content)
        # Parsed once, and by the faster one: an answer may be half a megabyte.
        response.json = lambda **_: body  # type: ignore[method-assign]
        self._kept.warnings = [str(warning) for warning in body.get("warnings") or ()]


def _sample(item: Mapping[str, Any]) -> Sample:
    _, value = item["value"]
    return Sample(labels=cast("Mapping[str, str]", item["metric"]), value=float(value))


def _points(item: Mapping[str, Any]) -> SeriesPoints:
    points = tuple((float(at), float(value)) for at, value in item["values"])
    return SeriesPoints(labels=cast("Mapping[str, str]", item["metric"]), points=points)


def _clock_ahead(date: str | None, *, now: float) -> float | None:
    """The header has whole seconds, cut off: half a second is added back."""
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp() + 0.5 - now
    except ValueError:
        return None


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:_WORDS_LIMIT]
