"""Small random models of each family, from folders and GGUF files, against transformers in float32, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.engine.builders import make_engine, make_request, make_scheduler, output_of, run_until_idle
from tests.engine.model_families import (
    FAMILIES,
    Family,
    edit_config,
    make_runner,
    random_twin,
    rewrite_weights,
    save_folder,
    save_gguf,
)

from tidewheel.engine.errors import StartError
from tidewheel.engine.kernels.interface import AttentionBatch, Shape
from tidewheel.engine.kernels.reference import ReferenceKernels
from tidewheel.engine.model.checkpoint import Checkpoint, load_checkpoint
from tidewheel.engine.model.llama import Llama
from tidewheel.engine.request import Request

PLAIN = FAMILIES["llama 2"]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Any]:
    folder = tmp_path_factory.mktemp("model")
    twin = save_folder(folder, FAMILIES[request.param])
    return load_checkpoint(folder, dtype=torch.float32), twin


def assert_greedy(twin: Any, request: Request) -> None:
    """Each written token is what transformers finds best after the same tokens."""
    with torch.inference_mode():
        logits = twin(torch.tensor([request.token_ids[:-1]])).logits[0]
    assert output_of(request) == logits[request.num_prompt - 1 :].argmax(-1).tolist()


PROMPTS = [[(7 * i * i + 3 * j) % 290 + 5 for j in range(1 + 5 * i % 37)] for i in range(24)]


@pytest.mark.parametrize("prompts", [PROMPTS[::4], pytest.param(PROMPTS, marks=pytest.mark.long)], ids=["few", "all"])
@pytest.mark.parametrize(
    "schedule",
    [{}, {"budget": 7}, {"budget": 16, "max_chunk": 3}, {"caches_prefixes": False}, {"num_blocks": 16}],
    ids=["batched", "chunked", "small chunks", "no cache", "preempted"],
)
def test_greedy_tokens_equal_transformers_under_any_schedule(
    pair: tuple[Checkpoint, Any], schedule: dict[str, int], prompts: list[list[int]]
) -> None:
    checkpoint, twin = pair
    options = {"num_blocks": 200, "max_model_len": 256} | schedule
    runner = make_runner(checkpoint, num_blocks=options["num_blocks"])
    scheduler = make_scheduler(**options)  # type: ignore[arg-type]
    engine = make_engine(scheduler)
    engine.runner = runner
    requests = [make_request(prompt, max_tokens=12) for prompt in [*prompts, *prompts[:2]]]
    for request in requests:
        request.eos_ids = frozenset()
        engine.submit(request)
    run_until_idle(engine)
    assert (scheduler.num_preemptions > 0) == ("num_blocks" in schedule)
    for request in requests:
        assert_greedy(twin, request)


def test_one_at_a_time_equals_transformers_too(pair: tuple[Checkpoint, Any]) -> None:
    checkpoint, twin = pair
    engine = make_engine(make_scheduler(num_blocks=40))
    engine.runner = make_runner(checkpoint)
    for prompt in PROMPTS[:8:3]:
        request = make_request(prompt, max_tokens=6)
        request.eos_ids = frozenset()
        engine.submit(request)
        run_until_idle(engine)
        assert_greedy(twin, request)


def run_greedy(checkpoint: Checkpoint, prompts: list[list[int]], **options: Any) -> list[Request]:
    engine = make_engine(make_scheduler(**{"num_blocks": 80, "max_model_len": 256} | options))
    engine.runner = make_runner(checkpoint, num_blocks=80)
    requests = [make_request(prompt, max_tokens=12) for prompt in prompts]
    for request in requests:
        request.eos_ids = frozenset()
        engine.submit(request)
    run_until_idle(engine)
    return requests


@pytest.mark.parametrize("name", FAMILIES)
def test_a_gguf_file_computes_what_its_folder_does(name: str, tmp_path: Path) -> None:
    """Permuted q and k (llama's files only), tied heads, biases, head norms, both forms of stretched rope."""
    family = FAMILIES[name]
    twin = random_twin(family)
    save_gguf(tmp_path / "model.gguf", family, twin)
    checkpoint = load_checkpoint(tmp_path / "model.gguf", dtype=torch.float32)
    for request in run_greedy(checkpoint, PROMPTS[2:10:3], budget=16):
        assert_greedy(twin, request)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_quantised_gguf_tensors_are_read_as_they_were_rounded(kind: str, tmp_path: Path) -> None:
    """The twin gets the rounded numbers, so its tokens must be equal again."""
    family, quantisation = PLAIN, gguf.GGMLQuantizationType[kind]
    twin = random_twin(family)
    save_gguf(tmp_path / "model.gguf", family, twin, kind=quantisation)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.dim() == 2:
                rounded = gguf.dequantize(gguf.quantize(parameter.numpy(), quantisation), quantisation)
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(rounded)))
    checkpoint = load_checkpoint(tmp_path / "model.gguf", dtype=torch.float32)
    for request in run_greedy(checkpoint, PROMPTS[1:6:2]):
        assert_greedy(twin, request)


# ggml's K-quants -> where their blocks keep float16 scales, which random bytes would make infinite.
K_QUANTS = {"Q2_K": (80, 84), "Q3_K": (108, 110), "Q4_K": (0, 4), "Q5_K": (0, 4), "Q6_K": (208, 210)}


@pytest.mark.parametrize("kind", K_QUANTS)
def test_k_quants_are_read(kind: str, tmp_path: Path) -> None:
    family = Family("llama", num_heads=16, num_kv_heads=16, tied=True, extra={"intermediate_size": 256})
    quantisation = gguf.GGMLQuantizationType[kind]
    twin = random_twin(family)
    rng = np.random.default_rng(1)
    begin, end = K_QUANTS[kind]

    def random_blocks(values: np.ndarray, _: Any) -> np.ndarray:
        blocks = rng.integers(0, 256, (len(values), *gguf.quant_shape_to_byte_shape((256,), quantisation)), np.uint8)
        blocks[:, begin:end] = np.full((len(values), (end - begin) // 2), 0.002, np.float16).view(np.uint8)
        return blocks

    save_gguf(tmp_path / "model.gguf", family, twin, kind=quantisation, quantise=random_blocks)
    checkpoint = load_checkpoint(tmp_path / "model.gguf", dtype=torch.float32)
    _, stray = twin.load_state_dict(checkpoint.weights, strict=False)
    assert not stray
    twin.tie_weights()
    for request in run_greedy(checkpoint, PROMPTS[:2]):
        assert_greedy(twin, request)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_close_to_float32(pair: tuple[Checkpoint, Any], dtype: torch.dtype) -> None:
    checkpoint, _ = pair
    halved = Checkpoint(
        checkpoint.config, {n: t.to(dtype) for n, t in checkpoint.weights.items()}, checkpoint.tokenizer
    )
    token_ids = torch.tensor(PROMPTS[7])
    exact, rounded = (logits_of(c, token_ids, t) for c, t in ((checkpoint, torch.float32), (halved, dtype)))
    assert float((rounded - exact).norm() / exact.norm()) < (0.05 if dtype is torch.bfloat16 else 0.01)


def logits_of(checkpoint: Checkpoint, token_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    config, length = checkpoint.config, len(token_ids)
    shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, 16)
    kernels = ReferenceKernels()
    model = Llama(config, dict(checkpoint.weights), kernels=kernels, shape=shape)
    cpu = torch.device("cpu")
    pools = [kernels.allocate_kv(-(-length // 16), shape, dtype, cpu) for _ in range(config.num_layers)]
    batch = AttentionBatch(
        positions=torch.arange(length),
        slots=torch.arange(length),
        query_starts=torch.tensor([0, length], dtype=torch.int32),
        context_lens=torch.tensor([length], dtype=torch.int32),
        block_tables=torch.arange(-(-length // 16), dtype=torch.int32)[None],
        sample_rows=torch.arange(length),
        num_decodes=0,
    )
    with torch.inference_mode():
        return model.logits(token_ids, batch, pools)


def test_a_sliding_window_limits_requests_to_where_attention_is_exact(tmp_path: Path) -> None:
    """Beyond it the model was trained to see less than we would show it."""
    save_folder(tmp_path, Family("mistral", extra={"sliding_window": 48}))
    checkpoint = load_checkpoint(tmp_path, dtype=torch.float32)
    assert make_runner(checkpoint).max_model_len == 48


def test_a_window_that_is_switched_off_limits_nothing(tmp_path: Path) -> None:
    save_folder(tmp_path, Family("qwen2", extra={"sliding_window": 48, "use_sliding_window": False}))
    edit_config(tmp_path, sliding_window=48)
    assert make_runner(load_checkpoint(tmp_path, dtype=torch.float32)).max_model_len == 256


def test_files_from_before_rope_parameters_mean_the_same(tmp_path: Path) -> None:
    family = FAMILIES["llama 3"]
    twin = save_folder(tmp_path, family)
    rope = dict(family.rope or {})
    theta = rope.pop("rope_theta")
    edit_config(tmp_path, rope_parameters=None, rope_theta=theta, rope_scaling=rope)
    for request in run_greedy(load_checkpoint(tmp_path, dtype=torch.float32), PROMPTS[:4]):
        assert_greedy(twin, request)


def test_nan_weights_fail_requests_and_not_the_engine(tmp_path: Path) -> None:
    save_folder(tmp_path, PLAIN)
    checkpoint = load_checkpoint(tmp_path, dtype=torch.float32)
    checkpoint.weights["model.norm.weight"][:] = torch.nan
    engine = make_engine(make_scheduler(num_blocks=40))
    engine.runner = make_runner(checkpoint)
    request = make_request(5)
    engine.submit(request)
    run_until_idle(engine)
    assert request.error is not None
    assert request.error.code == "logits_not_finite"


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no .safetensors"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda folder: rewrite_weights(folder, lambda w: w.pop("model.norm.weight")), "norm.weight is missing"),
        (lambda folder: edit_config(folder, num_hidden_layers=4), "layers.3.input_layernorm.weight is missing"),
        (lambda folder: edit_config(folder, num_hidden_layers=2), "does not belong"),
        (lambda folder: edit_config(folder, intermediate_size=97), "has shape"),
        (lambda folder: edit_config(folder, architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel is not supported"),
        (lambda folder: edit_config(folder, attention_bias=True), "attention_bias"),
        (lambda folder: edit_config(folder, hidden_act="gelu"), "hidden_act"),
        (lambda folder: edit_config(folder, rope_scaling={"rope_type": "yarn"}), "yarn"),
    ],
    ids=[
        "truncated", "no weights", "no tokenizer", "broken config", "missing tensor", "missing layer", "surplus tensor",
        "wrong shape",
        "other architecture", "biases", "other activation", "other rope",
    ],
)  # fmt: skip
def test_a_damaged_folder_is_refused_at_start(tmp_path: Path, damage, words: str) -> None:  # type: ignore[no-untyped-def]
    save_folder(tmp_path, PLAIN)
    damage(tmp_path)
    with pytest.raises(StartError, match=words):
        load_checkpoint(tmp_path, dtype=torch.float32)
