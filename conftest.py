"""What holds for every test of the repository."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

# Of a test's time-out: the rest is for its fixtures to stop what they started.
_SHARE_OF_TIMEOUT = 0.8


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Async tests end in time, and what starts real processes may be disturbed once by a busy machine.

    The latter gets one more try, which the closing line of the run counts ("2 rerun"); pure tests get none.
    """
    for item in items:
        if isinstance(item, pytest.Function):
            _bound(item, _SHARE_OF_TIMEOUT * _timeout_of(item))
        is_real = item.get_closest_marker("component") or item.path.is_relative_to(config.rootpath / "e2e")
        if is_real and config.pluginmanager.has_plugin("rerunfailures"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def _timeout_of(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None and marker.args:
        return float(marker.args[0])
    return float(item.config.getoption("timeout") or item.config.getini("timeout"))


def _bound(item: pytest.Function, seconds: float) -> None:
    """Cancel the test's own task when its time is over.

    pytest-timeout's alarm raises in whatever runs at that moment. In an event loop this is often another task, the
    alarm is lost with it, and a test that waits for ever then holds the whole run for ever.
    """
    inner = getattr(item.obj, "hypothesis", None)
    if inner is not None and inspect.iscoroutinefunction(inner.inner_test):
        inner.inner_test = _within(inner.inner_test, seconds)
    elif inspect.iscoroutinefunction(item.obj):
        item.obj = _within(item.obj, seconds)


def _within(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                await test(*args, **kwargs)
        except TimeoutError:
            if deadline.expired():
                pytest.fail(f"not done within {seconds:g} s")
            raise

    return bounded
