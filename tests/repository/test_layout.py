"""Nested namespace packages: the layout that keeps the standard library's ``operator`` alive."""

import importlib.machinery
import os
import sys
from pathlib import Path

import pytest
from tests.repository.project import ROOT, components, leaf, run, settings, tracked_files

VAGUE = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc", "lib", "base_utils"}


@pytest.mark.parametrize("statement", ["import collections, operator", "import json.tool, venv"])
def test_the_standard_library_works_in_the_root(statement: str) -> None:
    """An ``operator/__init__.py`` here would break every interpreter that is started here."""
    code = f"{statement}; import operator; print(operator.__file__)"
    result = run([sys.executable, "-S", "-c", code], environment={"PATH": os.environ["PATH"]})
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()) == Path(os.__file__).with_name("operator.py")


@pytest.mark.parametrize("component", components())
def test_no_package_stands_above_the_leaf(component: str) -> None:
    assert not (ROOT / component / "__init__.py").exists()
    assert not (ROOT / component / "tidewheel" / "__init__.py").exists()


@pytest.mark.parametrize("component", components())
def test_nothing_but_tidewheel_can_be_imported_from_a_component(component: str) -> None:
    """Component folders stand on sys.path: whatever else is in one would be importable by its bare name."""
    suffixes = tuple(importlib.machinery.all_suffixes())
    folder = ROOT / component
    importable = [
        path.name
        for path in folder.iterdir()
        if path.name != "tidewheel"
        and path.name != "__pycache__"
        and (path.name.endswith(suffixes) or (path.is_dir() and path.name.isidentifier()))
    ]
    assert importable == []


@pytest.mark.parametrize("component", components())
def test_each_component_is_one_typed_package(component: str) -> None:
    package = leaf(component)
    assert (package / "__init__.py").is_file()
    assert (package / "py.typed").is_file()


def test_every_tool_knows_every_component() -> None:
    """A component that one of them does not know is not shipped, not checked, or not tested."""
    tool = settings()["tool"]
    folders = components()
    leaves = [f"{folder}/tidewheel" for folder in folders]
    mypy_path = ["$MYPY_CONFIG_FILE_DIR", *(f"$MYPY_CONFIG_FILE_DIR/{folder}" for folder in folders)]
    wheel = tool["hatch"]["build"]["targets"]["wheel"]
    assert sorted(wheel["only-include"]) == sorted(leaves)
    assert sorted(wheel["sources"]) == sorted(folders)
    assert sorted(tool["mypy"]["files"]) == sorted(leaves)
    assert sorted(tool["mypy"]["mypy_path"].split(":")) == sorted(mypy_path)
    assert sorted(tool["ruff"]["src"]) == sorted(folders)
    assert sorted(tool["pytest"]["ini_options"]["pythonpath"]) == sorted([".", *folders])
    names = [f"tidewheel.{leaf(folder).name}" for folder in folders]
    assert sorted(tool["importlinter"]["root_packages"]) == sorted(names)


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.suffix == ".py" and VAGUE & {path.stem, *path.relative_to(ROOT).parts[:-1]}
    ]
    assert vague == []
