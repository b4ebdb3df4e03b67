"""The Triton kernels in Triton's interpreter against plain torch. Cases are tiny: a program costs milliseconds here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engine.kernels.batches import PAGE, Case, Sequence, make_batch, make_case, make_shape

from tidewheel.engine.kernels.cuda import decode, rows
from tidewheel.engine.kernels.cuda.kernels import TritonKernels
from tidewheel.engine.kernels.reference import ReferenceKernels

TRITON = TritonKernels()
REFERENCE = ReferenceKernels()
SHAPES = [(1, 1, 64), (4, 1, 128), (7, 1, 80), (8, 1, 64), (4, 2, 64)]


def run(case: Case, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return case.run(TRITON, dtype=dtype, earlier_by=REFERENCE)


def assert_like_torch(case: Case) -> None:
    expected = case.run(REFERENCE, dtype=torch.float32)
    assert torch.allclose(run(case), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_decode_at_lengths_around_a_page(heads: tuple[int, int, int]) -> None:
    sequences = [Sequence(n - 1) for n in (1, PAGE - 1, PAGE, PAGE + 1)]
    assert_like_torch(make_case(sequences, make_shape(*heads)))


@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_chunks_that_start_inside_a_page(heads: tuple[int, int, int]) -> None:
    assert_like_torch(make_case([Sequence(7, 10), Sequence(0, 2), Sequence(PAGE, 17)], make_shape(*heads)))


def test_decodes_and_chunks_in_one_step() -> None:
    sequences = [Sequence(20), Sequence(0), Sequence(5, 9), Sequence(33), Sequence(0, 12)]
    assert_like_torch(make_case(sequences, make_shape(8, 2, 64)))


def test_bf16_stays_within_its_rounding() -> None:
    case = make_case([Sequence(40), Sequence(3, 6)], make_shape(4, 2, 64))
    expected = case.run(REFERENCE, dtype=torch.float32)
    error = (run(case, torch.bfloat16) - expected).norm() / expected.norm()
    assert error < 0.02


@pytest.mark.parametrize("num_splits", [1, 2, 8])
def test_splits_may_outnumber_the_tiles(num_splits: int) -> None:
    """An empty split has no weight in the merge."""
    shape = make_shape(4, 1, 64)
    case = make_case([Sequence(0), Sequence(40)], shape)
    expected = case.run(REFERENCE, dtype=torch.float32)

    class Split(TritonKernels):
        def attention(self, q: Any, kv: Any, batch: Any, shape: Any) -> torch.Tensor:
            out = torch.empty((q.shape[0], shape.num_heads * shape.head_dim))
            decode.decode_attention(q, kv, batch, shape, out=out, num_splits=num_splits)
            return out

    actual = case.run(Split(), dtype=torch.float32, earlier_by=REFERENCE)
    assert torch.allclose(actual, expected, rtol=1e-5, atol=2e-6)


def test_sequences_may_share_pages() -> None:
    case = make_case([Sequence(20), Sequence(20)], make_shape(4, 2, 64))
    table = case.table.clone()
    table[1, 0] = table[0, 0]
    assert_like_torch(replace(case, table=table))


@pytest.mark.parametrize("hit", [1, PAGE - 1, PAGE, 19])
def test_every_hit_length_attends_like_a_miss(hit: int) -> None:
    whole = make_case([Sequence(0, 20)], make_shape(2, 1, 64))
    expected = whole.run(REFERENCE, dtype=torch.float32)
    rest = replace(whole, sequences=[Sequence(hit, 20 - hit)], earlier=whole.qkv[:hit], qkv=whole.qkv[hit:])
    assert torch.allclose(run(rest), expected[hit:], rtol=1e-5, atol=2e-6)


def test_a_padding_row_stores_nothing() -> None:
    """vllm#43810: slot -1 must not reach the last page of the pool."""
    shape = make_shape(4, 2, 64)
    case = make_case([Sequence(0)], shape, padding=2)
    kv = TRITON.allocate_kv(3, shape, torch.float32, torch.device("cpu")).fill_(7.0)
    batch = make_batch(case.sequences, torch.zeros_like(case.table), padding=2)
    cos_sin = torch.ones((4, shape.head_dim))
    TRITON.rope_and_store(case.qkv.clone(), cos_sin, kv, batch, shape)
    assert (kv[0, :, 0] != 7.0).all()
    assert (kv[0, :, 1:] == 7.0).all()
    assert (kv[1:] == 7.0).all()


@pytest.mark.parametrize("width", [1, 40, 64, 576])
def test_rms_norm(width: int) -> None:
    x, weight = torch.randn(3, width), torch.randn(width)
    assert torch.allclose(rows.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [1, 40, 1025])
def test_gate_and_up(width: int) -> None:
    x, gate, up = torch.randn(2, 8), torch.randn(width, 8), torch.randn(width, 8)
    actual = TRITON.gate_up(x, TRITON.pack_gate_up(gate, up))
    expected = REFERENCE.gate_up(x, REFERENCE.pack_gate_up(gate, up))
    assert torch.allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_linear_add_adds_the_product_to_the_residual() -> None:
    x, weight, residual = torch.randn(3, 8), torch.randn(5, 8), torch.randn(3, 5)
    expected = residual + x @ weight.T
    assert torch.allclose(TRITON.linear_add(x, TRITON.pack(weight), residual), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("num_sequences", "max_context", "expected"),
    [(1, 8192, 16), (1, 300, 1), (1, 100, 1), (2, 131072, 8), (64, 131072, 1), (0, 4096, 16), (1, 10**6, 16)],
)
def test_splits_fill_the_processors_and_stay_long(num_sequences: int, max_context: int, expected: int) -> None:
    found = decode.choose_num_splits(
        num_sequences=num_sequences, num_kv_heads=8, max_context=max_context, processors=132
    )
    assert found == expected
