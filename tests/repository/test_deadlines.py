"""A test that waits for ever fails in its time, and the tests after it still run."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
    import asyncio
    import pytest

    async def busy_for_ever():
        # The alarm of pytest-timeout most often rings in here, and is lost with this task.
        task = None
        while True:
            if task is None or task.done():
                task = asyncio.create_task(work())
            await asyncio.sleep(0)

    async def work():
        while True:
            sum(range(20_000))
            await asyncio.sleep(0)

    async def test_never_ends():
        await busy_for_ever()

    @pytest.mark.timeout(2)
    async def test_never_ends_with_its_own_time():
        await busy_for_ever()

    async def test_its_own_timeout_is_its_own():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(1)

    async def test_after_them():
        assert True
"""


def test_an_async_test_that_never_ends_fails_alone(pytester: pytest.Pytester) -> None:
    """A CI run of 90 minutes once hung in one test, whose alarm had been lost in another task."""
    pytester.makeconftest((ROOT / "conftest.py").read_text())
    pytester.makeini("[pytest]\nasyncio_mode = auto\ntimeout = 3\nmarkers = component: real")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", timeout=60)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*not done within 2.4 s*", "*not done within 1.6 s*"])
