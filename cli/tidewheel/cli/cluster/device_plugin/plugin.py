"""What the kubelet asks a device plugin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc

from tidewheel.cli.cluster.device_plugin import api_pb2 as api

_SERVICE = "v1beta1.DevicePlugin"
# What NVIDIA's plugin tells its containers, so that programs that look for it see the same.
_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"


class DevicePlugin:
    """`count` devices, healthy unless the file `unhealthy` names them."""

    def __init__(self, *, count: int, unhealthy: Path | None, poll_seconds: float) -> None:
        self._ids = [f"gpu-{number}" for number in range(count)]
        self._unhealthy = unhealthy
        self._poll_seconds = poll_seconds

    def handlers(self, closing: threading.Event) -> grpc.GenericRpcHandler:
        """The service's methods for one server; `closing` ends its open streams."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "GetDevicePluginOptions": unary(
                    lambda *_: api.DevicePluginOptions(),
                    request_deserializer=api.Empty.FromString,
                    response_serializer=api.DevicePluginOptions.SerializeToString,
                ),
                "ListAndWatch": stream(
                    lambda *_: self._watch(closing),
                    request_deserializer=api.Empty.FromString,
                    response_serializer=api.ListAndWatchResponse.SerializeToString,
                ),
                "Allocate": unary(
                    lambda request, _: self.allocate(request),
                    request_deserializer=api.AllocateRequest.FromString,
                    response_serializer=api.AllocateResponse.SerializeToString,
                ),
            },
        )

    def devices(self) -> api.ListAndWatchResponse:
        broken = self._broken()
        devices = [api.Device(ID=each, health="Unhealthy" if each in broken else "Healthy") for each in self._ids]
        return api.ListAndWatchResponse(devices=devices)

    def allocate(self, request: api.AllocateRequest) -> api.AllocateResponse:
        answers = [
            api.ContainerAllocateResponse(envs={_VISIBLE_DEVICES: ",".join(sorted(each.devices_ids))})
            for each in request.container_requests
        ]
        return api.AllocateResponse(container_responses=answers)

    def _watch(self, closing: threading.Event) -> Iterator[api.ListAndWatchResponse]:
        """All devices now, and again whenever their health changes."""
        told: api.ListAndWatchResponse | None = None
        while not closing.is_set():
            current = self.devices()
            if current != told:
                told = current
                yield current
            closing.wait(self._poll_seconds)

    def _broken(self) -> set[str]:
        try:
            return set(self._unhealthy.read_text().split()) if self._unhealthy else set()
        except FileNotFoundError:
            return set()
