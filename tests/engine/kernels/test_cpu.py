"""The C++ kernels against plain torch in fp32, from the same bf16 numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.engine.kernels.batches import PAGE, Sequence, make_case, make_shape
from torch import Tensor

from tidewheel.engine.kernels.cpu.kernels import CpuKernels, reason_not_to_use
from tidewheel.engine.kernels.interface import HeadAdjustment, Shape
from tidewheel.engine.kernels.reference import ReferenceKernels

_REASON = reason_not_to_use()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

REFERENCE = ReferenceKernels()
BF16_STEP = 2.0**-8  # distance of neighbours just above 1


@pytest.fixture(scope="module", params=[1, 2], ids=["1 thread", "2 threads"])
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return CpuKernels(threads=request.param)


def bf16(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 11, 12, 13, 15, 16, 17, 25, 32, 33, 97, 193, 200])
def test_linear_takes_any_number_of_rows(kernels: CpuKernels, rows: int) -> None:
    x, weight = bf16(rows, 64), bf16(96, 64, seed=1)
    actual = kernels.logits(x, kernels.pack(weight))
    assert torch.allclose(actual, x.float() @ weight.float().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [3, 37])
@pytest.mark.parametrize("outputs", [2, 15, 16, 17, 31, 32, 33, 50, 64])
def test_linear_takes_any_number_of_outputs(kernels: CpuKernels, outputs: int, rows: int) -> None:
    x, weight, residual = bf16(rows, 32), bf16(outputs, 32, seed=1), bf16(rows, outputs, seed=3)
    packed = kernels.pack(weight)
    product = x.float() @ weight.float().T
    assert torch.allclose(kernels.linear(x, packed).float(), product, rtol=BF16_STEP, atol=1e-2)
    once = kernels.linear_add(x, packed, residual)
    assert once.dtype == torch.float32
    assert torch.allclose(once, product + residual.float(), rtol=1e-5, atol=1e-4)
    assert torch.allclose(kernels.linear_add(x, packed, once), 2 * product + residual.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("inputs", [32, 34])
@pytest.mark.parametrize("rows", [7, 21])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 40, 64])
def test_gate_and_up_are_one_product(kernels: CpuKernels, width: int, rows: int, inputs: int) -> None:
    x, gate, up = bf16(rows, inputs), bf16(width, inputs, seed=1), bf16(width, inputs, seed=2)
    expected = torch.nn.functional.silu(x.float() @ gate.float().T) * (x.float() @ up.float().T)
    actual = kernels.gate_up(x, kernels.pack_gate_up(gate, up))
    assert actual.shape == expected.shape
    assert torch.allclose(actual.float(), expected, rtol=BF16_STEP, atol=1e-2)


def test_silu_of_extreme_gates_stays_finite(kernels: CpuKernels) -> None:
    first, second = torch.eye(2, dtype=torch.bfloat16).split(1)
    x = torch.tensor([[-1e4, 1.0], [1e4, 1.0], [-88.0, 1.0]], dtype=torch.bfloat16)
    actual = kernels.gate_up(x, kernels.pack_gate_up(first, second))
    assert actual[:, 0].tolist() == [0.0, float(x[1, 0]), pytest.approx(0.0, abs=1e-30)]


@pytest.mark.parametrize("rows", [6, 20])
def test_a_row_of_nan_leaves_its_neighbours_alone(kernels: CpuKernels, rows: int) -> None:
    x, weight = bf16(rows, 32), bf16(48, 32, seed=1)
    packed = kernels.pack(weight)
    clean = kernels.linear(x, packed)
    x[2] = float("nan")
    spoiled = kernels.linear(x, packed)
    others = [row for row in range(rows) if row != 2]
    assert spoiled[2].isnan().all()
    assert torch.equal(spoiled[others], clean[others])


@pytest.mark.parametrize("width", [16, 40, 576])
@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rms_norm(kernels: CpuKernels, rows: int, width: int, dtype: torch.dtype) -> None:
    x, weight = bf16(rows, width).to(dtype), bf16(width, seed=1)
    expected = REFERENCE.rms_norm(x.float(), weight.float(), 1e-5)
    assert torch.allclose(kernels.rms_norm(x, weight, 1e-5).float(), expected, rtol=BF16_STEP, atol=1e-6)


@pytest.mark.parametrize("width", [1, 16, 17, 1000])
def test_argmax_takes_the_lowest_of_equals_and_shows_nan(kernels: CpuKernels, width: int) -> None:
    logits = torch.randn((5, width), generator=torch.Generator().manual_seed(0)).clamp(max=1.0)
    logits[1] = 0.5
    logits[2] = -float("inf")
    logits[3, width // 2] = float("nan")
    logits[4, width - 1] = float("nan")
    values, ids = kernels.argmax(logits)
    lowest = [row.tolist().index(row.max()) for row in logits[:3]]
    assert ids[:3].tolist() == lowest
    assert torch.equal(values[:3], logits[:3].amax(-1))
    assert values[3:].isnan().all()


ATTENTION_CASES = {
    "lengths around a page": [Sequence(n - 1) for n in (1, PAGE - 1, PAGE, PAGE + 1, 4 * PAGE, 4 * PAGE + 1, 300)],
    "long enough to be split": [Sequence(40 * PAGE + 5)],
    "one whole prompt": [Sequence(0, 100)],
    "chunks that start inside a page": [Sequence(7, 30), Sequence(33, 3), Sequence(64, 65)],
    "decodes and chunks together": [Sequence(200), Sequence(5, 40), Sequence(0), Sequence(16, 16)],
}


@pytest.mark.parametrize("sequences", ATTENTION_CASES.values(), ids=ATTENTION_CASES.keys())
@pytest.mark.parametrize("heads", [(9, 3, 64), (2, 2, 128), (7, 1, 80), (16, 2, 64), (4, 1, 16)], ids=str)
def test_attention(kernels: CpuKernels, heads: tuple[int, int, int], sequences: list[Sequence]) -> None:
    case = make_case(sequences, make_shape(*heads))
    expected = case.run(REFERENCE, dtype=torch.float32)
    actual = case.run(kernels, dtype=torch.bfloat16)
    assert not actual.isnan().any()
    assert relative_error(actual, expected) < 0.008


def test_padding_rows_store_nothing_and_disturb_nobody(kernels: CpuKernels) -> None:
    sequences = [Sequence(20), Sequence(3, 9)]
    alone = make_case(sequences, make_shape(4, 2, 64)).run(kernels, dtype=torch.bfloat16)
    padded = make_case(sequences, make_shape(4, 2, 64), padding=3).run(kernels, dtype=torch.bfloat16)
    assert len(padded) == len(alone) + 3
    assert torch.equal(padded[: len(alone)], alone)


@pytest.mark.parametrize("cut", [1, 16, 37, 89])
def test_a_chunked_prompt_attends_like_a_whole_one(kernels: CpuKernels, cut: int) -> None:
    whole = make_case([Sequence(0, 90)], make_shape(9, 3, 64))
    out = whole.run(kernels, dtype=torch.bfloat16)
    chunk = replace(whole, sequences=[Sequence(cut, 90 - cut)], earlier=whole.qkv[:cut], qkv=whole.qkv[cut:])
    tail = chunk.run(kernels, dtype=torch.bfloat16)
    assert torch.allclose(tail, out[cut:], rtol=BF16_STEP, atol=1e-2)


def test_shapes_the_kernels_cannot_take_are_refused_with_the_way_out(kernels: CpuKernels) -> None:
    with pytest.raises(ValueError, match="--kernels reference"):
        kernels.allocate_kv(4, make_shape(2, 2, 24), torch.bfloat16, torch.device("cpu"))
    with pytest.raises(ValueError, match="multiplied in pairs"):
        kernels.pack(bf16(8, 33))


@pytest.mark.parametrize("family", ["bias", "norms", "both"])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_heads_are_adjusted_before_rope(kernels: CpuKernels, family: str, rows: int) -> None:
    """Qwen2's bias and Qwen3's norms."""
    shape = Shape(num_heads=4, num_kv_heads=2, head_dim=48, block_size=PAGE)
    width = (4 + 2 * 2) * 48
    adjustment = HeadAdjustment(
        bias=None if family == "norms" else bf16(width, seed=1),
        q_norm=None if family == "bias" else bf16(48, seed=2),
        k_norm=None if family == "bias" else bf16(48, seed=3),
        eps=1e-6,
    )
    qkv = bf16(rows, width)
    exact = HeadAdjustment(
        *(None if t is None else t.float() for t in (adjustment.bias, adjustment.q_norm, adjustment.k_norm)), eps=1e-6
    )
    expected = REFERENCE.adjust_heads(qkv.float(), exact, shape)
    actual = kernels.adjust_heads(qkv, adjustment, shape)
    assert torch.allclose(actual.float(), expected, rtol=3 * BF16_STEP, atol=1e-2)
