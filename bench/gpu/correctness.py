"""Are the Triton kernels right on this card, in bf16? Exit code 1 if not.

relative_error   L2 distance from plain torch in float32, relative; the limit is 0.01
high_blocks      the same sequence in blocks beyond 2^31 elements of the pool gives the same bits
"""

import sys
from dataclasses import replace

import torch
from bench.gpu.device import Device, open_device, parser
from bench.report import Report
from tests.engine.kernels.batches import PAGE, Case, Sequence, make_case, make_shape

from tidewheel.engine.kernels.cuda.kernels import TritonKernels
from tidewheel.engine.kernels.reference import ReferenceKernels

LIMIT = 0.01
SHAPES = [(32, 8, 128), (64, 8, 128), (9, 3, 64), (7, 1, 80), (8, 8, 128)]
CASES = {
    "decode": [Sequence(n - 1) for n in (1, PAGE - 1, PAGE, PAGE + 1, 300, 700, 4097)],
    "prefill": [Sequence(0, 700), Sequence(0, 1), Sequence(0, 64)],
    "chunks": [Sequence(7, 100), Sequence(500, 33), Sequence(16, 16)],
    "mixed": [Sequence(900), Sequence(3), Sequence(250, 250)],
}
SMALL = {"mixed": [Sequence(20), Sequence(3, 5)]}


def relative_error(case: Case, device: Device) -> float:
    exact = case.run(ReferenceKernels(), dtype=torch.float32, device=device.torch.type)
    ours = case.run(TritonKernels(), dtype=torch.bfloat16, device=device.torch.type)
    return float((ours - exact).norm() / exact.norm())


def high_blocks_agree(device: Device) -> bool:
    """A pool of more than 2^31 elements: 32-bit offsets would wrap (vllm#47671, sglang#20389)."""
    case = make_case([Sequence(40), Sequence(5, 20)], make_shape(32, 8, 128))
    block_elements = 2 * PAGE * 8 * 128
    far = (1 << 31) // block_elements + 1
    low = case.run(TritonKernels(), dtype=torch.bfloat16, device=device.torch.type)
    moved = replace(case, table=case.table + far, num_blocks=case.num_blocks + far)
    return torch.equal(moved.run(TritonKernels(), dtype=torch.bfloat16, device=device.torch.type), low)


def main() -> None:
    options = parser("bench.gpu.correctness", __doc__).parse_args()
    report = Report("gpu_correctness")
    device = open_device(options)
    right = True
    for name, sequences in (SMALL if options.small else CASES).items():
        for heads in SHAPES[-2:] if options.small else SHAPES:
            error = relative_error(make_case(sequences, make_shape(*heads)), device)
            right &= error < LIMIT
            report.measure(f"{name}_{'x'.join(map(str, heads))}", "relative_error", error, "ratio")
    if not options.small:
        agrees = high_blocks_agree(device)
        right &= agrees
        report.measure("high_blocks", "equal", agrees, "bool")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
