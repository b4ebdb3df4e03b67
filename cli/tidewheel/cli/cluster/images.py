"""Write container images without a registry, a daemon or a build tool: an OCI archive is a tar of JSON and layers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
# Any fixed moment, so that the same content is the same digest.
_EPOCH = 0


@dataclass(frozen=True, slots=True)
class Image:
    """`files` maps a path to its bytes (executable), `links` a path to its target. `name` is fully qualified."""

    name: str
    architecture: str
    entrypoint: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    folders: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def write_archive(image: Image, target: Path) -> Path:
    """An archive for `ctr images import`."""
    layer_tar = _layer(image)
    layer = gzip.compress(layer_tar, mtime=_EPOCH)
    config = _json(_config(image, diff_id=_digest(layer_tar)))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer)],
        }
    )
    # containerd takes the name from its own annotation; the other is what the specification says.
    names = {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name.rpartition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [{**_descriptor(_MANIFEST, manifest), "annotations": names}]}
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json(index))
        for blob in (config, layer, manifest):
            _add(archive, "blobs/" + _digest(blob).replace(":", "/"), blob)
    return target


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in image.folders:
            # As everywhere: any user may write to /tmp (torch cannot be imported without a temporary folder).
            entry = _entry(folder, mode=0o1777 if folder in {"tmp", "var/cache"} else 0o755)
            entry.type = tarfile.DIRTYPE
            layer.addfile(entry)
        for path, target in image.links.items():
            entry = _entry(path, mode=0o777)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            layer.addfile(entry)
        for path, content in image.files.items():
            _add(layer, path, content, mode=0o755)
    return buffer.getvalue()


def _config(image: Image, *, diff_id: str) -> dict[str, object]:
    return {
        "architecture": image.architecture,
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in image.environment.items()],
            "Entrypoint": list(image.entrypoint),
            "User": image.user,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }


def _add(archive: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    entry = _entry(path, mode=mode)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _entry(path: str, *, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.strip("/"))
    entry.mode, entry.mtime = mode, _EPOCH
    return entry


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
