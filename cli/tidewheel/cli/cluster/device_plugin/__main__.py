"""`python -m tidewheel.cli.cluster.device_plugin`: one plugin process, one per node."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from tidewheel.cli.cluster.device_plugin.plugin import DevicePlugin
from tidewheel.cli.cluster.device_plugin.registration import keep_registered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resource", default="nvidia.com/gpu", help="the extended resource to offer")
    parser.add_argument("--count", type=int, default=8, help="how many devices")
    parser.add_argument("--folder", type=Path, default=Path("/var/lib/kubelet/device-plugins"), help="of the sockets")
    parser.add_argument("--unhealthy", type=Path, help="file with ids of broken devices, may change any time")
    parser.add_argument("--poll-seconds", type=float, default=0.2, help="how often to look at socket and file")
    arguments = parser.parse_args()
    stop = threading.Event()
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, lambda *_: stop.set())
    plugin = DevicePlugin(count=arguments.count, unhealthy=arguments.unhealthy, poll_seconds=arguments.poll_seconds)
    keep_registered(
        plugin, folder=arguments.folder, resource=arguments.resource, stop=stop, poll_seconds=arguments.poll_seconds
    )


if __name__ == "__main__":
    main()
