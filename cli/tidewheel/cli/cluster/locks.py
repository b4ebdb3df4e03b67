"""A file lock that the kernel gives back when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidewheel.cli.cluster.errors import CollisionError


@contextmanager
def locked(path: Path, *, busy: str) -> Iterator[None]:
    """Hold the lock for the block and remove its file afterwards; CollisionError with `busy` when another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CollisionError(busy) from error
            if not _is_still(path, lock.fileno()):
                continue  # its last holder removed the file after we opened it: this lock would exclude nobody
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
