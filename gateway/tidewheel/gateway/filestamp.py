"""Whether a file is still the one that was read."""

from pathlib import Path


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Differs when the file was written or replaced, as the kubelet does by a link; None while there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
