"""One HTTP session to one API server: credentials per request, bounded time, bounded retries, no silent peers."""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Self

import aiohttp
from yarl import URL

from tidewheel.clients.access import Access
from tidewheel.clients.errors import ApiError, ServerUnavailable, TooManyRequests, error_from_answer

JSON: Final = "application/json"
_SHORTEST_SECONDS: Final = 0.1  # aiohttp takes zero for "no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Every duration in seconds.

    A watch asks the server to end it after ``watch_seconds``; two seconds before, the server sends a bookmark. So a
    quiet watch that is alive speaks at least that often, and ``silence_seconds`` without a byte means a half-open
    connection (kopf#957). Both must stay below 30 for the promise that one is noticed within 30 s.
    """

    timeout_seconds: float = 10.0
    connect_timeout_seconds: float = 2.5
    unacknowledged_seconds: float = 8.0
    watch_seconds: int = 20
    silence_seconds: float = 25.0
    retries: int = 2
    retry_seconds: float = 0.2
    requests_per_second: float = 50.0
    burst: int = 100
    page_size: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``idempotent``: to send it twice does no more than to send it once."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = JSON
    idempotent: bool = False
    timeout_seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes


OnAnswer = Callable[[Call, int], None]
"""Hears of every call that is not a watch, and of its HTTP status; 0: there was no answer."""


class RateLimit:
    """Token bucket that makes callers wait, so that a bug of ours never becomes the API server's outage."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def reserve(self) -> float:
        """Takes one token and returns how many seconds from now it is there."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self._rate)


class Transport:
    """Sends calls. Use as an async context manager."""

    def __init__(
        self, access: Access, *, user_agent: str, settings: ClientSettings, on_answer: OnAnswer | None = None
    ) -> None:
        self._access = access
        self._on_answer = on_answer or (lambda call, status: None)
        self._user_agent = user_agent
        self._settings = settings
        self._limit = RateLimit(rate=settings.requests_per_second, burst=settings.burst)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            ssl=self._access.ssl_context if self._access.ssl_context is not None else True,
            limit_per_host=64,
            socket_factory=self._open_socket,
        )
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, call: Call) -> Answer:
        """The answer of a call that succeeded; raises ApiError otherwise, at the latest after the call's timeout.

        What the call waits for our own rate limit does not count.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (call.timeout_seconds or self._settings.timeout_seconds)
        attempt, refreshed = 0, False
        while True:
            try:
                answer = await self.send_once(call, timeout_seconds=max(_SHORTEST_SECONDS, deadline - loop.time()))
                if answer.status < 300:
                    return answer
                error: ApiError = _refusal(call, answer)
            except ServerUnavailable as unavailable:
                error = unavailable
            if error.status == 401 and not refreshed:
                refreshed = True
                self._access.credentials.invalidate()
                continue
            delay = self._retry_delay(call, error, attempt)
            if delay is None or loop.time() + delay >= deadline:
                raise error
            attempt += 1
            await asyncio.sleep(delay)

    async def send_once(self, call: Call, *, timeout_seconds: float) -> Answer:
        """The answer whatever its status; raises ServerUnavailable when there is none."""
        await asyncio.sleep(self._limit.reserve())
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=self._settings.connect_timeout_seconds)
        try:
            async with await self._open(call, timeout) as response:
                answer = Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, OSError) as error:
            self._on_answer(call, 0)
            raise self._unavailable(call, error) from error
        self._on_answer(call, answer.status)
        return answer

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of the answer in pieces, without an end; ServerUnavailable after ``silence_seconds`` without one."""
        timeout = aiohttp.ClientTimeout(
            sock_connect=self._settings.connect_timeout_seconds, sock_read=self._settings.silence_seconds
        )
        try:
            response = await self._open(call, timeout)
            if response.status == 401:
                response.release()
                self._access.credentials.invalidate()
                response = await self._open(call, timeout)
            async with response:
                if response.status != 200:
                    raise _refusal(call, Answer(response.status, response.headers, await response.read()))
                try:
                    yield response.content.iter_any()
                finally:
                    _abort_unfinished(response)
        except (aiohttp.ClientError, OSError) as error:
            raise self._unavailable(call, error) from error

    async def _open(self, call: Call, bounds: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the client is used outside its `async with`")
        headers = {"Accept": JSON, "User-Agent": self._user_agent}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        if token := await self._access.credentials.token():
            headers["Authorization"] = f"Bearer {token}"
        url = URL(self._access.server + call.path, encoded=True)
        return await self._session.request(
            call.method,
            url.update_query(call.params) if call.params else url,
            data=call.body,
            headers=[*headers.items(), *self._access.headers],
            timeout=bounds,
            allow_redirects=False,  # a redirect would carry the token to another server
            proxy=self._access.proxy,
            server_hostname=self._access.server_hostname,
        )

    def _retry_delay(self, call: Call, error: ApiError, attempt: int) -> float | None:
        """Seconds to wait, or None. A 429 was not executed, so it may be sent again whatever the verb."""
        safe = isinstance(error, TooManyRequests) or (call.idempotent and isinstance(error, ServerUnavailable))
        if not safe or attempt >= self._settings.retries:
            return None
        if error.retry_after is not None:
            return error.retry_after
        return random.uniform(0.5, 1.0) * self._settings.retry_seconds * float(2**attempt)

    def _unavailable(self, call: Call, error: Exception) -> ServerUnavailable:
        words = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
        return ServerUnavailable(0, "NoAnswer", f"{self._access.server} cannot be asked: {words}", call=str(call))

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """A socket whose peer must acknowledge: idle connections are probed, and unanswered bytes end them."""
        family, kind, protocol, _, _ = address
        opened = socket.socket(family=family, type=kind, proto=protocol)
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        milliseconds = round(self._settings.unacknowledged_seconds * 1000)
        for name, value in (
            ("TCP_KEEPIDLE", 5),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", milliseconds),
        ):
            if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
                opened.setsockopt(socket.IPPROTO_TCP, option, value)
        return opened


def _abort_unfinished(response: aiohttp.ClientResponse) -> None:
    """Ends the connection of an endless answer at once: its TLS farewell would outlive session and loop."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


def _refusal(call: Call, answer: Answer) -> ApiError:
    try:
        retry_after = float(answer.headers["Retry-After"])
    except (KeyError, ValueError):
        retry_after = None
    return error_from_answer(answer.status, answer.body, call=str(call), retry_after=retry_after)
