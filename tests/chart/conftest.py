"""Fixtures of the chart's tests."""

from typing import Any

import pytest
from tests.chart.rendering import Helm

from tidewheel.cli.cluster.prebuilt import find_helm
from tidewheel.cli.cluster.progress import QuietProgress


@pytest.fixture(scope="session")
def helm() -> Helm:
    return Helm(find_helm(QuietProgress()))


@pytest.fixture(scope="session")
def rendered(helm: Helm) -> list[dict[str, Any]]:
    return helm.render()
