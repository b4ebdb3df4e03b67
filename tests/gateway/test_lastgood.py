"""The last known good routing survives whatever happens to its files."""

import os
from pathlib import Path

import pytest
from tests.gateway.programs import table

from tidewheel.gateway.lastgood import LastGood
from tidewheel.gateway.snapshot import ModelKey, Snapshot, parse_snapshot

CHAT = ModelKey("default", "chat")


def snapshot(generation: int) -> Snapshot:
    body = {
        "tables": [table(weights={"v1": 10_000}, generation=generation)],
        "endpoints": {"default/chat/v1": ["10.0.0.1:1"]},
    }
    return parse_snapshot(body, observed_at="2026-01-01T00:00:00Z")


def loaded(folder: Path) -> int | None:
    saved = LastGood(folder).load()
    return saved.snapshot.tables[CHAT].generation if saved else None


async def test_what_was_saved_last_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert loaded(folder) is None
    for generation in (1, 2, 3):
        LastGood(folder).save(snapshot(generation))
        assert loaded(folder) == generation
    saved = LastGood(folder).load()
    assert saved is not None
    assert saved.snapshot == snapshot(3)
    assert sorted(path.name for path in folder.iterdir()) == ["routing.json", "routing.previous.json"]


async def test_a_file_damaged_at_any_place_is_never_believed(tmp_path: Path) -> None:
    store = LastGood(tmp_path)
    store.save(snapshot(1))
    store.save(snapshot(2))
    newest = tmp_path / "routing.json"
    whole = newest.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        newest.write_bytes(whole[:length])
        assert loaded(tmp_path) == 1, f"cut at {length}"
    for place in range(0, len(whole) - 1, 7):
        newest.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert loaded(tmp_path) == 1, f"changed at {place}"


async def test_with_both_files_damaged_there_is_nothing(tmp_path: Path) -> None:
    store = LastGood(tmp_path)
    store.save(snapshot(1))
    store.save(snapshot(2))
    for path in tmp_path.iterdir():
        path.write_bytes(b"{}\n")
    assert loaded(tmp_path) is None


async def test_a_write_that_fails_leaves_the_last_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LastGood(tmp_path)
    store.save(snapshot(1))

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        store.save(snapshot(2))
    assert loaded(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["routing.json"]


@pytest.mark.parametrize("step", ["between the renames", "before any rename"])
async def test_a_crash_while_saving_leaves_something_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = LastGood(tmp_path)
    store.save(snapshot(1))
    real, count = Path.replace, [0]

    def crash(self: Path, target: Path) -> Path:
        count[0] += 1
        if count[0] == (2 if step == "between the renames" else 1):
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        store.save(snapshot(2))
    assert loaded(tmp_path) == 1
