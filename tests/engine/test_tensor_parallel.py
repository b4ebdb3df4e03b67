"""Two processes with half of every layer each: the same tokens as one process, and a clean end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.engine.builders import make_engine, make_request, make_scheduler, output_of, run_until_idle
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from tidewheel.engine.artifact import Artifact
from tidewheel.engine.errors import StartError
from tidewheel.engine.model.checkpoint import expected_shapes, load_checkpoint
from tidewheel.engine.model.config import ModelConfig
from tidewheel.engine.model.shards import Shards
from tidewheel.engine.settings import Settings
from tidewheel.engine.torch_runner import TorchRunner
from tidewheel.engine.torch_start import start_torch

PROMPTS = [[5, 6, 7], list(range(20, 57)), [9] * 16, list(range(100, 140))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    raw = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "max_position_embeddings": 256,
    }  # fmt: skip
    config = ModelConfig(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16,
        rms_norm_eps=1e-5, rope_theta=10_000.0, max_position=256,
    )  # fmt: skip
    shapes = expected_shapes(config) | {"lm_head.weight": (256, 64)}
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator).mul(0.2) for name, shape in shapes.items()}
    save_file(weights, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(raw))
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}, merges=[]))
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def settings(folder: Path, **changes: object) -> Settings:
    return Settings(model=str(folder), dtype="float32", kernels="reference", kv_memory=4 << 20, threads=1, **changes)  # type: ignore[arg-type]


def generated(runner: TorchRunner) -> list[list[int]]:
    """Greedy tokens of prompts that are chunked, batched, and join one another."""
    engine = make_engine(make_scheduler(num_blocks=32, block_size=16, budget=24, max_model_len=200), runner)  # type: ignore[arg-type]
    requests = [make_request(prompt, max_tokens=12) for prompt in PROMPTS]
    for request in requests:
        engine.submit(request)
    run_until_idle(engine)
    return [output_of(request) for request in requests]


@pytest.mark.component
def test_two_processes_generate_the_tokens_of_one(folder: Path) -> None:
    artifact = Artifact(name="tiny", path=folder)
    alone, _ = start_torch(artifact, settings(folder))
    num_blocks = alone.num_blocks
    expected = generated(alone)
    together, _ = start_torch(artifact, settings(folder, tensor_parallel=2))
    try:
        # Each rank holds half the heads, so the same memory holds twice the tokens.
        assert together.num_blocks == 2 * num_blocks
        assert generated(together) == expected
    finally:
        together.close()


def test_the_parts_of_all_ranks_are_the_whole(folder: Path) -> None:
    whole = load_checkpoint(folder, dtype=torch.float32).weights
    halves = [load_checkpoint(folder, dtype=torch.float32, shards=Shards(rank, 2)).weights for rank in (0, 1)]
    for name, tensor in whole.items():
        first, second = halves[0][name], halves[1][name]
        axis = next((i for i in range(tensor.ndim) if first.shape[i] != tensor.shape[i]), None)
        assert torch.equal(first if axis is None else torch.cat([first, second], dim=axis), tensor), name
    assert halves[0]["model.layers.0.self_attn.o_proj.weight"].shape[1] * 2 == 64


def test_heads_that_cannot_be_cut_are_named(folder: Path) -> None:
    with pytest.raises(StartError, match=r"--tensor-parallel 3: the model's num_heads = 4.*divisor of 4"):
        Shards(0, 3).check(num_heads=4)
