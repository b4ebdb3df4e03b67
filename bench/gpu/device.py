"""The card under test, how fast it can be at most, and stopwatches that wait for it."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# bytes/s of memory and dense bf16 FLOP/s, from the vendor's data sheets
PEAKS = {"H200": (4.8e12, 989e12), "H100": (3.35e12, 989e12), "A100": (2.0e12, 312e12), "L40S": (0.864e12, 362e12)}


@dataclass(frozen=True, slots=True)
class Device:
    torch: torch.device
    name: str
    bandwidth: float  # bytes/s
    flops: float  # bf16 FLOP/s

    def seconds(self, call: Callable[[], object], *, repeats: int) -> float:
        """The best of a few runs, each until the device is idle again."""
        call()
        best = float("inf")
        for _ in range(repeats):
            self.wait()
            began = time.perf_counter()
            call()
            self.wait()
            best = min(best, time.perf_counter() - began)
        return best

    def wait(self) -> None:
        if self.torch.type == "cuda":
            torch.cuda.synchronize(self.torch)


def parser(program: str, description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--device", default="cuda", help="cuda; cpu only to see that the script itself runs")
    made.add_argument("--small", action="store_true", help="tiny sizes, for a look at the script")
    made.add_argument("--peak-bandwidth", type=float, help="bytes/s; default: by the card's name")
    made.add_argument("--peak-flops", type=float, help="dense bf16 FLOP/s; default: by the card's name")
    return made


def open_device(options: argparse.Namespace) -> Device:
    """Prints the card as a JSON line, so that every result carries it."""
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    known = next((peaks for card, peaks in PEAKS.items() if card in name), (float("nan"), float("nan")))
    bandwidth, flops = options.peak_bandwidth or known[0], options.peak_flops or known[1]
    line = {"gpu": name, "torch": torch.__version__, "cuda": torch.version.cuda}
    print(json.dumps({**line, "peak_bandwidth": str(bandwidth), "peak_flops": str(flops)}), flush=True)
    return Device(device, name, bandwidth, flops)
