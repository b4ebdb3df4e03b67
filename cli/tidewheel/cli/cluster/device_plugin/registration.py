"""Serve the plugin beside the kubelet's socket, and register again with every new kubelet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from tidewheel.cli.cluster.device_plugin import api_pb2 as api
from tidewheel.cli.cluster.device_plugin.plugin import DevicePlugin

_SOCKET = "tidewheel-gpus.sock"
_REGISTER = "/v1beta1.Registration/Register"


def keep_registered(
    plugin: DevicePlugin, *, folder: Path, resource: str, stop: threading.Event, poll_seconds: float
) -> None:
    """Until `stop`: whenever there is a kubelet that does not know us, serve anew and register."""
    kubelet = folder / "kubelet.sock"
    while not stop.is_set():
        seen = identity(kubelet)
        if seen is None:
            stop.wait(poll_seconds)
            continue
        with _serving(plugin, folder / _SOCKET):
            # A kubelet that is only about to listen refuses: then it counts as not seen, and all is tried again.
            known = _register(kubelet, resource)
            while known and not stop.is_set() and identity(kubelet) == seen:
                stop.wait(poll_seconds)
        stop.wait(poll_seconds)


def identity(socket: Path) -> tuple[int, int] | None:
    """Tells one kubelet's socket from the next. A new socket can have the old inode number, so its time counts too."""
    try:
        status = socket.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


@contextmanager
def _serving(plugin: DevicePlugin, socket: Path) -> Iterator[None]:
    """A starting kubelet deletes every socket in its folder, ours too: each registration gets a new server."""
    socket.unlink(missing_ok=True)
    closing = threading.Event()
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers((plugin.handlers(closing),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield
    finally:
        closing.set()
        server.stop(grace=0.5).wait()


def _register(kubelet: Path, resource: str) -> bool:
    request = api.RegisterRequest(
        version="v1beta1", endpoint=_SOCKET, resource_name=resource, options=api.DevicePluginOptions()
    )
    with grpc.insecure_channel(f"unix://{kubelet}") as channel:
        register = channel.unary_unary(
            _REGISTER,
            request_serializer=api.RegisterRequest.SerializeToString,
            response_deserializer=api.Empty.FromString,
        )
        try:
            register(request, timeout=5)
        except grpc.RpcError as error:
            print(f"registration with {kubelet} failed, trying again: {error}", flush=True)
            return False
    print(f"registered {resource} with {kubelet}", flush=True)
    return True
