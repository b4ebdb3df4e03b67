"""Who may import whom (DESIGN, section 3), by the contracts of import-linter in pyproject.toml."""

import sys
from pathlib import Path

from tests.repository.project import run


def test_imports_point_in_one_direction() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    result = run([program, "--no-logo", "--no-cache"])
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    assert " 0 broken" in result.stdout
