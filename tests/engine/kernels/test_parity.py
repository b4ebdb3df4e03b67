"""The whole model in C++ bf16 against the whole model in float32, on a real prompt, in chunks and decodes."""

from __future__ import annotations

import pytest
import torch
from tests.engine.kernels.batches import PAGE, Sequence, make_batch

from tidewheel.engine.artifact import resolve_model
from tidewheel.engine.kernels.cpu.kernels import CpuKernels, reason_not_to_use
from tidewheel.engine.kernels.interface import Kernels, Shape
from tidewheel.engine.kernels.reference import ReferenceKernels
from tidewheel.engine.model.checkpoint import Checkpoint, load_checkpoint
from tidewheel.engine.model.llama import Llama

_REASON = reason_not_to_use()
pytestmark = [pytest.mark.component, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]

PROMPT = """The tide is the rise and fall of sea levels caused by the combined effects of the gravitational forces
exerted by the Moon and, to a much lesser extent, the Sun, and by the rotation of the Earth. A tide wheel is a water
wheel that turns with it. Six hours after it has stopped"""
REPLY = " it turns the other way, because the water that came in goes out again."


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    path = resolve_model("smollm2", sha256=None, needs_file=True).path
    assert path is not None
    return load_checkpoint(path, dtype=torch.bfloat16)


def logits_of(kernels: Kernels, checkpoint: Checkpoint, dtype: torch.dtype, steps: list[list[int]]) -> torch.Tensor:
    """The last row's logits of every step."""
    config = checkpoint.config
    shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, PAGE)
    weights = {name: tensor.to(dtype) for name, tensor in checkpoint.weights.items()}
    model = Llama(config, weights, kernels=kernels, shape=shape)
    num_blocks = sum(map(len, steps)) // PAGE + 1
    pools = [kernels.allocate_kv(num_blocks, shape, dtype, torch.device("cpu")) for _ in range(config.num_layers)]
    table = torch.arange(num_blocks, dtype=torch.int32).flip(0)[None]
    rows, computed = [], 0
    with torch.inference_mode():
        for step in steps:
            batch = make_batch([Sequence(computed, len(step))], table)
            rows.append(model.logits(torch.tensor(step), batch, pools)[0])
            computed += len(step)
    return torch.stack(rows)


def test_logits_are_nearer_to_float32_than_torch_in_bf16(checkpoint: Checkpoint) -> None:
    """Relative L2 error of the logits; measured 0.7 % on average, where torch in bf16 has 2.2 %."""
    prompt, reply = (checkpoint.tokenizer.encode_prompt(text) for text in (PROMPT, REPLY))
    steps = [prompt[:50], prompt[50:], *([token] for token in reply)]
    exact = logits_of(ReferenceKernels(), checkpoint, torch.float32, steps)
    plain, ours = (
        (logits_of(kernels, checkpoint, torch.bfloat16, steps) - exact).norm(dim=-1) / exact.norm(dim=-1)
        for kernels in (ReferenceKernels(), CpuKernels(threads=2))
    )
    assert ours.max() < 0.02
    assert ours.mean() < 0.5 * plain.mean()
