"""The images a local cluster brings along: the sandbox image, and Tidewheel's three and Redis without content of their
own."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from tidewheel.cli.cluster.host_mounts import CONTAINER_CACHE
from tidewheel.cli.cluster.images import Image

PAUSE = "localhost/pause:1"
PROGRAMS = ("engine", "operator", "gateway")
_REDIS = "tidewheel-redis:dev"
REDIS_VALUES = ("--set", f"redis.embedded=true,redis.image={_REDIS}")
"""Arguments for Helm: gateways share replies through a Redis that runs from this machine's own package."""
_UNPRIVILEGED = "65532:65532"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def pause_image(binary: Path) -> Image:
    return Image(
        name=PAUSE,
        architecture=architecture(),
        entrypoint=["/pause"],
        user=_UNPRIVILEGED,
        files={"pause": binary.read_bytes()},
    )


def program_image(program: str) -> Image:
    """As the Dockerfile of the program makes it, but with the host's files mounted where the Dockerfile installs."""
    return _host_image(f"tidewheel-{program}:dev", ["python", "-m", f"tidewheel.{program}"])


def redis_image() -> Image:
    """Debian's redis-server."""
    return _host_image(_REDIS, ["redis-server"])


def _host_image(name: str, entrypoint: Sequence[str]) -> Image:
    return Image(
        name=f"docker.io/library/{name}",
        architecture=architecture(),
        entrypoint=entrypoint,
        environment={
            "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "HOME": "/tmp",
            "XDG_CACHE_HOME": str(CONTAINER_CACHE),
        },
        user=_UNPRIVILEGED,
        folders=["dev", "etc", "models", "proc", "sys", "tmp", "usr", "var", "var/cache", "var/run"],
        files={
            "etc/passwd": b"root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n",
            "etc/group": b"root:x:0:\nnonroot:x:65532:\n",
            "etc/nsswitch.conf": b"hosts: files dns\n",
        },
        links={"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"},
    )
