"""docs/engine-test-table.md names tests that exist."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "engine-test-table.md"


def test_every_test_that_the_table_names_exists() -> None:
    file, missing, seen = "", [], 0
    for named in re.findall(r"`((?:[\w/]+\.py)?(?:::\w+\*?)?)`", TABLE.read_text(encoding="utf-8")):
        path, _, test = named.partition("::")
        file = path or file
        if not file:
            continue
        if not (HERE / file).is_file():
            missing.append(file)
            continue
        names = re.findall(r"def (test_\w+)", (HERE / file).read_text(encoding="utf-8"))
        seen += bool(test)
        if test and not any(fnmatch(name, test) for name in names):
            missing.append(f"{file}::{test}")
    assert missing == []
    assert seen > 50
