"""A recorded decode step computes what the step itself computes, whatever its inputs hold by then."""

from __future__ import annotations

import pytest
import torch
from tests.engine.kernels.batches import PAGE, Sequence, make_batch
from torch import Tensor

from tidewheel.engine.kernels.cpu.kernels import CpuKernels, reason_not_to_use
from tidewheel.engine.kernels.interface import AttentionBatch, Shape
from tidewheel.engine.kernels.recorded import RecordedDecodes
from tidewheel.engine.kernels.reference import ReferenceKernels
from tidewheel.engine.model.checkpoint import expected_shapes
from tidewheel.engine.model.config import ModelConfig
from tidewheel.engine.model.llama import Llama

_REASON = reason_not_to_use()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    vocab_size=50, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
    rms_norm_eps=1e-5, rope_theta=10000.0, max_position=256,
)  # fmt: skip
SHAPE = Shape(CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.head_dim, PAGE)
NUM_BLOCKS = 24


class Twins:
    """The same weights and the same history twice: one side computes its steps directly, the other from recordings."""

    def __init__(self, *, sizes: tuple[int, ...]) -> None:
        self.kernels = CpuKernels(threads=2)
        self.kernels.recorded_sizes = sizes
        generator = torch.Generator().manual_seed(0)
        weights = {
            name: torch.randn(shape, generator=generator).mul(0.3).bfloat16()
            for name, shape in expected_shapes(CONFIG).items()
        }
        self.model = Llama(CONFIG, weights, kernels=self.kernels, shape=SHAPE)
        self.pools, self.twin_pools = (
            [self.kernels.allocate_kv(NUM_BLOCKS, SHAPE, torch.bfloat16, CPU) for _ in range(CONFIG.num_layers)]
            for _ in range(2)
        )
        self.recorded = RecordedDecodes(
            lambda ids, batch: self.model.logits(ids, batch, self.twin_pools), self.kernels, max_blocks=8, device=CPU
        )

    def prefill(self, ids: Tensor, batch: AttentionBatch) -> None:
        for pools in (self.pools, self.twin_pools):
            self.model.logits(ids, batch, pools)

    def decode(self, ids: Tensor, batch: AttentionBatch) -> None:
        assert self.recorded.covers(batch)
        size = next(size for size in self.kernels.recorded_sizes if size >= len(ids))
        expected = self.model.logits(*filled_up(ids, batch, size=size), self.pools)[batch.sample_rows]
        assert torch.equal(self.recorded.run(ids, batch), expected)
        for pool, twin in zip(self.pools, self.twin_pools, strict=True):
            assert torch.equal(pool, twin)


def filled_up(ids: Tensor, batch: AttentionBatch, *, size: int) -> tuple[Tensor, AttentionBatch]:
    """As many rows as the recording has: of more rows a product may be computed in another order (AMX)."""
    more = size - len(ids)
    full = AttentionBatch(
        positions=torch.cat((batch.positions, torch.zeros(more, dtype=torch.int64))),
        slots=torch.cat((batch.slots, torch.full((more,), -1))),
        query_starts=torch.arange(size + 1, dtype=torch.int32),
        context_lens=torch.cat((batch.context_lens, torch.ones(more, dtype=torch.int32))),
        block_tables=torch.cat((batch.block_tables, batch.block_tables[:1].expand(more, -1))),
        sample_rows=torch.arange(size),
        num_decodes=size,
    )
    return torch.cat((ids, torch.zeros(more, dtype=torch.int64))), full


def table_for(sequences: int, *, blocks: int = 4) -> Tensor:
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1))[: sequences * blocks]
    return order.to(torch.int32).reshape(sequences, blocks)


@pytest.mark.parametrize("sizes", [tuple(range(1, 9)), (4, 8), (8,)], ids=str)
def test_steps_that_grow_shrink_and_cross_pages(sizes: tuple[int, ...]) -> None:
    twins, table = Twins(sizes=sizes), table_for(5)
    lengths = [3, 15, 16, 17, 30]
    batch = make_batch([Sequence(0, n) for n in lengths], table)
    twins.prefill(torch.arange(sum(lengths)) % CONFIG.vocab_size, batch)
    for step, members in enumerate([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 3], [4], [0, 1, 2, 3, 4], [2, 4, 0]]):
        batch = make_batch([Sequence(lengths[i]) for i in members], table[members])
        twins.decode(torch.tensor([(7 * i + step) % CONFIG.vocab_size for i in members]), batch)
        for i in members:
            lengths[i] += 1


def test_a_chunk_of_one_token_that_samples_nothing() -> None:
    twins, table = Twins(sizes=(1, 2, 3)), table_for(3)
    batch = make_batch([Sequence(0), Sequence(0), Sequence(0)], table)
    some = AttentionBatch(
        batch.positions, batch.slots, batch.query_starts, batch.context_lens, batch.block_tables,
        sample_rows=torch.tensor([2, 0]), num_decodes=3,
    )  # fmt: skip
    twins.decode(torch.tensor([1, 2, 3]), some)


def test_chunks_and_large_batches_are_left_to_the_model() -> None:
    twins, table = Twins(sizes=(1, 2)), table_for(3)
    assert twins.recorded.covers(make_batch([Sequence(4), Sequence(0)], table[:2]))
    assert not twins.recorded.covers(make_batch([Sequence(4), Sequence(0), Sequence(1)], table))
    assert not twins.recorded.covers(make_batch([Sequence(4), Sequence(0, 2)], table[:2]))
    nothing_recorded = RecordedDecodes(twins.model.logits, ReferenceKernels(), max_blocks=8, device=CPU)  # type: ignore[arg-type]
    assert not nothing_recorded.covers(make_batch([Sequence(4)], table[:1]))


def test_all_sizes_can_be_recorded_before_the_first_step() -> None:
    twins, table = Twins(sizes=(1, 3)), table_for(2)
    twins.recorded.record_all()
    batch = make_batch([Sequence(0), Sequence(0)], table)
    twins.decode(torch.tensor([5, 6]), batch)
