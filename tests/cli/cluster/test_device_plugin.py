"""The device plugin against a kubelet's end of the protocol, over real sockets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from tests.waiting import PATIENCE_SECONDS

from tidewheel.cli.cluster.device_plugin import api_pb2 as api
from tidewheel.cli.cluster.device_plugin.plugin import DevicePlugin
from tidewheel.cli.cluster.device_plugin.registration import identity, keep_registered

POLL = 0.01


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Short, as a socket's path has at most 107 characters."""
    short = Path("/tmp") / f"tw-plugin-{os.getpid()}"
    short.mkdir()
    yield short
    shutil.rmtree(short)


@contextmanager
def kubelet(folder: Path) -> Iterator[list[api.RegisterRequest]]:
    """A registration server on the kubelet's socket. Like the kubelet, it deletes all sockets when it starts."""
    for socket in folder.glob("*.sock"):
        socket.unlink()
    seen: list[api.RegisterRequest] = []
    registered = grpc.unary_unary_rpc_method_handler(
        lambda request, _: seen.append(request) or api.Empty(),
        request_deserializer=api.RegisterRequest.FromString,
        response_serializer=api.Empty.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": registered}),)
    )
    server.add_insecure_port(f"unix://{folder / 'kubelet.sock'}")
    server.start()
    try:
        yield seen
    finally:
        server.stop(grace=0).wait()


@contextmanager
def plugin(folder: Path, *, count: int, unhealthy: Path | None = None) -> Iterator[None]:
    stop = threading.Event()
    served = DevicePlugin(count=count, unhealthy=unhealthy, poll_seconds=POLL)
    thread = threading.Thread(
        target=lambda: keep_registered(served, folder=folder, resource="nvidia.com/gpu", stop=stop, poll_seconds=POLL)
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def watching(folder: Path, endpoint: str) -> Iterator[Iterator[dict[str, str]]]:
    with grpc.insecure_channel(f"unix://{folder / endpoint}") as channel:
        stream = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )(api.Empty())
        yield ({device.ID: device.health for device in answer.devices} for answer in stream)
        stream.cancel()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL)


def test_a_kubelet_learns_of_the_devices_and_of_their_health(folder: Path) -> None:
    broken = folder / "broken"
    with kubelet(folder) as seen, plugin(folder, count=2, unhealthy=broken):
        until(lambda: seen)
        assert (seen[0].resource_name, seen[0].version) == ("nvidia.com/gpu", "v1beta1")
        with watching(folder, seen[0].endpoint) as devices:
            assert next(devices) == {"gpu-0": "Healthy", "gpu-1": "Healthy"}
            broken.write_text("gpu-1\n")
            assert next(devices) == {"gpu-0": "Healthy", "gpu-1": "Unhealthy"}
            broken.unlink()
            assert next(devices) == {"gpu-0": "Healthy", "gpu-1": "Healthy"}


def test_a_new_kubelet_is_registered_with_again(folder: Path) -> None:
    with plugin(folder, count=1):
        for _ in range(3):
            with kubelet(folder) as seen:
                until(lambda seen=seen: seen)
                with watching(folder, seen[0].endpoint) as devices:
                    assert next(devices) == {"gpu-0": "Healthy"}


def test_a_new_socket_with_the_old_inode_is_another_kubelet(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    socket.touch()
    before = identity(socket)
    socket.chmod(0o600)  # the inode stays, its change time does not: as when the number is given to a new file
    after = identity(socket)
    assert before is not None
    assert after is not None
    assert before[0] == after[0]
    assert before != after


def test_containers_are_told_their_devices() -> None:
    request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=["gpu-3", "gpu-1"])])
    answer = DevicePlugin(count=8, unhealthy=None, poll_seconds=POLL).allocate(request)
    assert dict(answer.container_responses[0].envs) == {"NVIDIA_VISIBLE_DEVICES": "gpu-1,gpu-3"}


def test_the_generated_messages_are_fresh() -> None:
    root = Path(__file__).parents[3]
    check = subprocess.run(
        [root / "scripts" / "generate-device-plugin-api", "--check"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr
