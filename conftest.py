"""What holds for every test of the repository."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What starts real processes may be disturbed once by a machine that is busy with something else.

    It gets one more try, which the closing line of the run counts ("2 rerun"); pure tests get none.
    """
    if not config.pluginmanager.has_plugin("rerunfailures"):
        return
    for item in items:
        if item.get_closest_marker("component") or item.path.is_relative_to(config.rootpath / "e2e"):
            item.add_marker(pytest.mark.flaky(reruns=1))
