"""Images written without a build tool are what a container runtime reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

from tidewheel.cli.cluster.images import Image, write_archive
from tidewheel.cli.cluster.local_images import program_image

_IMAGE = Image(
    name="localhost/example:1",
    architecture="amd64",
    entrypoint=["/hello"],
    environment={"A": "b"},
    user="65532:65532",
    folders=["etc"],
    files={"hello": b"#!"},
    links={"bin": "usr/bin"},
)


def read(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]


def blob(files: dict[str, bytes], descriptor: dict[str, object]) -> bytes:
    content = files["blobs/" + str(descriptor["digest"]).replace(":", "/")]
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == descriptor["digest"]
    assert len(content) == descriptor["size"]
    return content


def test_an_archive_leads_from_its_index_to_every_file(tmp_path: Path) -> None:
    files = read(write_archive(_IMAGE, tmp_path / "image.tar"))
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/example:1"
    manifest = json.loads(blob(files, entry))
    config = json.loads(blob(files, manifest["config"]))
    layer = gzip.decompress(blob(files, manifest["layers"][0]))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert config["config"]["Entrypoint"] == ["/hello"]
    assert config["config"]["Env"] == ["A=b"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as content:
        assert content.getmember("hello").mode == 0o755
        assert content.getmember("bin").linkname == "usr/bin"
        assert content.getmember("etc").isdir()


def test_the_same_image_is_the_same_digest(tmp_path: Path) -> None:
    first, second = (write_archive(_IMAGE, tmp_path / name).read_bytes() for name in ("a.tar", "b.tar"))
    assert read(tmp_path / "a.tar") == read(tmp_path / "b.tar")
    assert len(first) == len(second)


def test_program_images_start_their_program_as_the_dockerfiles_do() -> None:
    image = program_image("gateway")
    assert image.name == "docker.io/library/tidewheel-gateway:dev"
    assert list(image.entrypoint) == ["python", "-m", "tidewheel.gateway"]
    assert image.user == "65532:65532"
