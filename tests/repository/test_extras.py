"""An image installs one extra, and so the extra must name all that its program imports."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from tests.repository.project import ROOT, settings

PROGRAMS = {
    "operator": ["crds", "clients", "rollout", "autoscaler", "operator"],
    "gateway": ["crds", "clients", "gateway"],
    "engine": ["engine_image"],
    "cli": ["crds", "clients", "rollout", "autoscaler", "cli"],
}
BESIDE = {"gateway": ["tracing"], "engine": ["tracing"]}
"""Extras that the image of a program installs as well: loaded only where a setting asks for them."""
ONLY_OF = {ROOT / "clients/tidewheel/clients/prometheus.py": "operator"}
"""Parts of what programs share that one of them alone imports."""


def distribution(requirement: str) -> str:
    """The normalised name at the start of a requirement."""
    return re.split(r"[<>=!~\[; (]", requirement)[0].lower().replace("_", "-")


def installed_by(extra: str) -> set[str]:
    """What the extra names, and what that needs itself."""
    project = settings()["project"]
    named = {distribution(item) for item in [*project["dependencies"], *project["optional-dependencies"][extra]]}
    implied = set[str]()
    for name in named:
        try:
            implied |= {distribution(item) for item in requires(name) or [] if "extra ==" not in item}
        except PackageNotFoundError:
            continue
    return named | implied


def imports(path: Path) -> Iterator[str]:
    """Top-level names of everything a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_extra_installs_all_that_its_program_imports(program: str) -> None:
    installed, owners = installed_by(program), packages_distributions()
    for extra in BESIDE.get(program, ()):
        installed |= installed_by(extra)
    missing = {
        f"{name} ({path.relative_to(ROOT)})"
        for component in PROGRAMS[program]
        for path in (ROOT / component / "tidewheel").rglob("*.py")
        if ONLY_OF.get(path, program) == program
        for name in imports(path)
        if name not in sys.stdlib_module_names and name != "tidewheel"
        if not {distribution(owner) for owner in owners.get(name, [name])} & installed
    }
    assert missing == set()
