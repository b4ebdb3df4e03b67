"""Kubeconfig files with everything embedded, so that one file can be copied anywhere."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from tidewheel.cli.cluster.certificates import KeyPair


def write_kubeconfig(path: Path, *, server: str, authority: Path, client: KeyPair, context: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(_render(server, authority, client, context), sort_keys=False))
    return path


def _render(server: str, authority: Path, client: KeyPair, context: str) -> dict[str, object]:
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    user = {"client-certificate-data": _base64(client.certificate), "client-key-data": _base64(client.key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": user}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
