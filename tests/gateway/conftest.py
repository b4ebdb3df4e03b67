"""Gateways and engines that end with their test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import uvloop
from tests.gateway.programs import Gateway, running_inside, start_process, table, write_routing
from tests.gateway.upstreams import Behaviour, Upstream, running_upstream
from tests.gateway.wire import WireClient, open_client

StartUpstream = Callable[..., Awaitable[Upstream]]
StartGateway = Callable[..., Awaitable[Gateway]]
Connect = Callable[[Gateway], Awaitable[WireClient]]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The program's own event loop, which differs from asyncio's in small ways."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Everything a test starts ends with it, the latest first."""
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
def start_upstream(stack: AsyncExitStack) -> StartUpstream:
    """Starts synthetic engines."""

    async def start(behave: Behaviour, *, host: str = "127.0.0.1") -> Upstream:
        return await stack.enter_async_context(running_upstream(behave, host=host))

    return start


@pytest.fixture
def start(stack: AsyncExitStack) -> StartGateway:
    """Starts gateways inside the test's process, with any arguments."""

    async def start_one(*arguments: str, **options: Any) -> Gateway:
        return await stack.enter_async_context(running_inside(*arguments, **options))

    return start_one


@pytest.fixture
def start_child(stack: AsyncExitStack) -> StartGateway:
    """Starts gateways as the image does, in processes of their own."""

    async def start_one(*arguments: str, **options: Any) -> Gateway:
        gateway = await start_process(*arguments, **options)
        stack.push_async_callback(gateway.stop)
        return gateway

    return start_one


@pytest.fixture
def serve(start: StartGateway, tmp_path: Path) -> StartGateway:
    """``serve({"v1": [upstream, ...]}, *arguments)``: a gateway whose routing is ``routing.json`` in ``tmp_path``.

    Shares are equal unless ``weights`` says otherwise.
    """
    return _with_static_routing(start, tmp_path / "routing.json")


@pytest.fixture
def serve_process(start_child: StartGateway, tmp_path: Path) -> StartGateway:
    """As ``serve``, in a process of its own."""
    return _with_static_routing(start_child, tmp_path / "routing.json")


def _with_static_routing(start: StartGateway, path: Path) -> StartGateway:
    async def start_static(
        versions: Mapping[str, Sequence[Upstream]],
        *arguments: str,
        weights: Mapping[str, int] | None = None,
        **spec: Any,
    ) -> Gateway:
        shares = weights or {version: 10_000 // len(versions) for version in versions}
        endpoints = {f"default/chat-{version}": [up.address for up in ups] for version, ups in versions.items()}
        write_routing(path, [table(weights=shares, **spec)], endpoints)
        return await start("--static", str(path), *arguments)

    return start_static


@pytest.fixture
def client_of(stack: AsyncExitStack) -> Callable[..., openai.AsyncOpenAI]:
    """The unmodified openai client; it does not retry unless asked to."""

    def make(gateway: Gateway, **options: Any) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-client", **{"max_retries": 0, **options})
        stack.push_async_callback(client.close)
        return client

    return make


@pytest.fixture
def connect(stack: AsyncExitStack) -> Connect:
    """Connections to a gateway's data port, closed at the end."""

    async def open_one(gateway: Gateway) -> WireClient:
        client = await open_client(gateway)
        stack.push_async_callback(client.close)
        return client

    return open_one
