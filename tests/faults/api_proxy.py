"""The HTTP-level fault proxy; ``proxy.py`` explains its use."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import aiohttp
import yaml
from aiohttp import web
from tests.faults.api_calls import WRITES, ApiCall, Match, parse_call
from tests.faults.api_faults import (
    After,
    Cut,
    CutInMidEvent,
    Delay,
    DelayEvent,
    DropEvent,
    DuplicateEvent,
    Effect,
    ErrorEvent,
    EventFault,
    Fault,
    Hang,
    LoseAnswer,
    Mute,
    Refuse,
    ReorderEvent,
    Rewrite,
    Say,
)
from tests.faults.looped import Looped
from yarl import URL

from tidewheel.clients.access import Access

_PASSED_ON: Final = ("Content-Type", "Retry-After", "Warning")
_POLL_SECONDS: Final = 0.02


class _ConnectionResetError(Exception):
    """The client's connection was reset on purpose."""


class ApiProxy(Looped):
    """Between one identity and the API server. See ``proxy.py``."""

    def __init__(self, access: Access) -> None:
        super().__init__()
        self._access = access
        self._faults: list[Fault] = []
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._streams: dict[asyncio.Task[object], ApiCall] = {}
        self.url = ""
        self.calls: list[ApiCall] = []

    def __enter__(self) -> Self:
        super().__enter__()
        self.run(self._start())
        return self

    def write_kubeconfig(self, path: Path, *, namespace: str = "default") -> Path:
        """A kubeconfig for programs that are to go through this proxy, as the proxy's identity."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy", "namespace": namespace}}],
            "current-context": "proxy",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    @property
    def access(self) -> Access:
        """For a KubeClient of the test that is to go through this proxy."""
        return Access(server=self.url, namespace=self._access.namespace, source="fault proxy")

    def inject(self, match: Match, effect: Effect, *, skip: int = 0, times: int | None = 1) -> Fault:
        """Puts a fault in place; its ``remove()`` ends it."""
        fault = Fault(match, effect, skip=skip, times=times)
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Removes every fault."""
        for fault in self._faults:
            fault.remove()
        self._faults.clear()

    def seen(self, match: Match = WRITES) -> list[ApiCall]:
        """The calls so far that match; by default every write but leases and Events."""
        return [call for call in self.calls if match(call)]

    def executed_writes(self) -> int:
        """How many writes the API server accepted, leases and Events aside."""
        return sum(1 for call in self.seen() if call.status is not None and call.status < 300)

    def break_streams(self, match: Match = Match()) -> int:  # noqa: B008 - frozen
        """Resets the open watches that match; returns how many."""
        return self.run(self._break_streams(match))

    async def aclose(self) -> None:
        """Closes server and upstream connections."""
        self.clear()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _start(self) -> None:
        ssl_context = self._access.ssl_context
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=True if ssl_context is None else ssl_context, limit=0),
            timeout=aiohttp.ClientTimeout(),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        application = web.Application(client_max_size=16 * 1024**2)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _break_streams(self, match: Match) -> int:
        broken = [task for task, call in self._streams.items() if match(call)]
        for task in broken:
            task.cancel()
        return len(broken)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = parse_call(
            method=request.method,
            path=request.path,
            watching=request.query.get("watch") in {"true", "1"},
            user_agent=request.headers.get("User-Agent", ""),
            authorization=request.headers.get("Authorization", ""),
        )
        self.calls.append(call)
        # Counted before anything is awaited: what "the k-th write" means must not depend on how long calls take.
        effects = [
            (fault, fault.effect)
            for fault in list(self._faults)
            if not isinstance(fault.effect, EventFault) and fault.takes(call)
        ]
        try:
            return await self._exchange(request, call, effects)
        except (_ConnectionResetError, aiohttp.ClientError, OSError):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)

    async def _exchange(
        self, request: web.Request, call: ApiCall, effects: Sequence[tuple[Fault, Effect]]
    ) -> web.StreamResponse:
        params: dict[str, str] = {}
        for fault, effect in effects:
            match effect:
                case Refuse(status=status):
                    return web.Response(
                        status=status, body=effect.body(), headers=effect.headers(), content_type="application/json"
                    )
                case Say(body=said):
                    return web.Response(body=said, content_type="text/html")
                case Cut():
                    raise _ConnectionResetError
                case Hang():
                    while not fault.removed:
                        await asyncio.sleep(_POLL_SECONDS)
                case Delay(seconds=seconds):
                    await asyncio.sleep(seconds)
                case Rewrite(params=rewritten):
                    params |= rewritten
        upstream = await self._forward(request, params)
        async with upstream:
            call.status = upstream.status
            if call.verb == "watch" and upstream.status == 200:
                return await self._relay_watch(request, call, upstream, effects)
            body = await upstream.read()
        for _, effect in effects:
            if isinstance(effect, After):
                effect.action()
            if isinstance(effect, LoseAnswer) or (isinstance(effect, After) and not effect.answer):
                raise _ConnectionResetError
        return web.Response(status=upstream.status, body=body, headers=_passed_on(upstream))

    async def _forward(self, request: web.Request, params: dict[str, str]) -> aiohttp.ClientResponse:
        assert self._session is not None
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in {"host", "authorization", "connection", "content-length", "accept-encoding"}
        }
        if token := await self._access.credentials.token():
            headers["Authorization"] = f"Bearer {token}"
        url = URL(self._access.server + request.raw_path, encoded=True)
        return await self._session.request(
            request.method,
            url.update_query(params) if params else url,
            data=await request.read() or None,  # an empty body would get a media type, which discovery refuses
            headers={**headers, "Accept-Encoding": "identity"},
            allow_redirects=False,
        )

    async def _relay_watch(
        self,
        request: web.Request,
        call: ApiCall,
        upstream: aiohttp.ClientResponse,
        effects: Sequence[tuple[Fault, Effect]],
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=200, headers=_passed_on(upstream))
        await response.prepare(request)
        for _, effect in effects:
            if isinstance(effect, ErrorEvent):
                await response.write(effect.line())
                return response
        task = asyncio.ensure_future(self._relay_events(response, call, upstream))
        self._streams[task] = call
        try:
            await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                task.cancel()
                raise
            raise _ConnectionResetError from None  # break_streams
        finally:
            del self._streams[task]
            if upstream.connection is not None and upstream.connection.transport is not None:
                upstream.connection.transport.abort()  # a TLS farewell would outlive the loop
        return response

    async def _relay_events(
        self, response: web.StreamResponse, call: ApiCall, upstream: aiohttp.ClientResponse
    ) -> None:
        held: list[bytes] = []
        rest = b""
        async for piece in upstream.content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if self._is_muted(call):
                    continue
                await self._relay_event(response, call, line + b"\n", held)
        while self._is_muted(call):  # nor does it say that it ended
            await asyncio.sleep(_POLL_SECONDS)
        for line in held:
            await response.write(line)

    async def _relay_event(self, response: web.StreamResponse, call: ApiCall, line: bytes, held: list[bytes]) -> None:
        event = json.loads(line)
        outgoing = [line]
        for fault in list(self._faults):
            if not fault.takes_event(call, event):
                continue
            match fault.effect:
                case DropEvent():
                    return
                case DuplicateEvent():
                    outgoing = [*outgoing, line]
                case ReorderEvent():
                    held.append(line)
                    return
                case DelayEvent(seconds=seconds):
                    await asyncio.sleep(seconds)
                case CutInMidEvent():
                    await response.write(line[: len(line) // 2])
                    raise _ConnectionResetError
        outgoing += held
        held.clear()
        for part in outgoing:
            await response.write(part)

    def _is_muted(self, call: ApiCall) -> bool:
        return any(isinstance(fault.effect, Mute) and not fault.removed and fault.match(call) for fault in self._faults)


def _passed_on(upstream: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: upstream.headers[name] for name in _PASSED_ON if name in upstream.headers}
