"""How pods are called: their address in a URL, and the token that engines ask for."""

import contextlib
from collections.abc import Mapping
from pathlib import Path


def pod_url(address: str, port: int, path: str) -> str:
    """Raises ValueError for a pod that has no address yet."""
    if not address:
        raise ValueError("the pod has no address")
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}{path}"


def engine_headers(token_file: Path | None) -> Mapping[str, str]:
    """The bearer token as the file has it now; none where there is no file, or it cannot be read."""
    if token_file is not None:
        with contextlib.suppress(OSError):
            return {"Authorization": f"Bearer {token_file.read_text().strip()}"}
    return {}
