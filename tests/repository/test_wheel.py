"""What is shipped: the built wheel, away from the checkout."""

import sys
import sysconfig
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from tests.repository.project import ROOT, components, leaf, run, tracked_files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as an installer builds it, with what is on disk now."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    result = run(command)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = folder.glob("tidewheel-*.whl")
    return built


def test_every_tracked_file_of_a_component_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    wanted = {
        str(path.relative_to(ROOT / component))
        for component in components()
        for path in tracked_files()
        if path.is_relative_to(ROOT / component / "tidewheel")
    }
    assert wanted - shipped == set()
    others = {name for name in shipped if not name.startswith(("tidewheel/", "tidewheel-"))}
    assert others == set()


def test_every_leaf_is_typed_and_imported_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    names = [leaf(component).name for component in components()]
    for name in names:
        assert (tmp_path / "tidewheel" / name / "py.typed").is_file()
    # -S keeps the editable install of this checkout away; third parties come from the environment.
    code = (
        "import sys, importlib\n"
        f"sys.path[:0] = [{str(tmp_path)!r}]\n"
        f"sys.path.append({sysconfig.get_path('purelib')!r})\n"
        f"for name in {names!r}:\n"
        "    module = importlib.import_module('tidewheel.' + name)\n"
        f"    assert module.__file__.startswith({str(tmp_path)!r}), module.__file__\n"
    )
    result = run([sys.executable, "-I", "-S", "-c", code], folder=tmp_path)
    assert result.returncode == 0, result.stderr


def test_every_console_script_names_a_function_that_exists(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (listing,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        lines = archive.read(listing).decode().splitlines()
    targets = [line.split("=")[1].strip() for line in lines if "=" in line]
    assert len(targets) >= 2
    for target in targets:
        module, function = target.split(":")
        assert callable(getattr(import_module(module), function))
