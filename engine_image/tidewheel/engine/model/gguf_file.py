"""GGUF: one file with the numbers, the vocabulary and the (often quantised) tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from tidewheel.engine.errors import StartError
from tidewheel.engine.model.checkpoint import Checkpoint
from tidewheel.engine.model.config import LinearRope, ModelConfig, RopeDivisors, RopeScaling
from tidewheel.engine.model.gguf_header import GgufError, GgufHeader, TensorInfo, read_gguf_header
from tidewheel.engine.model.gguf_tokenizer import gguf_tokenizer
from tidewheel.engine.model.shards import Shards

_FAMILIES = ("llama", "qwen2", "qwen3")  # Mistral's and SmolLM's files call themselves llama
_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
# Tensors that are numbers of the configuration rather than weights.
_ROPE_DIVISORS = "rope_freqs.weight"
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def load_gguf(path: Path, *, dtype: torch.dtype, shards: Shards) -> Checkpoint:
    try:
        header, data = read_gguf_header(path)
    except GgufError as error:
        raise StartError(f"{path} is not a readable GGUF file: {error}; check that it was copied whole.") from error
    try:
        config = _config(header.fields, path)
        tokenizer = gguf_tokenizer(header.fields, path)
    except KeyError as error:
        raise StartError(f"{path}: the field {error} is missing; the file is incomplete.") from error
    weights = _weights(path, header, data, config, dtype=dtype, shards=shards)
    divisors = weights.pop(_ROPE_DIVISORS, None)
    if divisors is not None:
        config = replace(config, rope_scaling=RopeDivisors(tuple(divisors.tolist())))
    return Checkpoint(config, weights, tokenizer)


def _config(fields: Mapping[str, Any], path: Path) -> ModelConfig:
    family = fields["general.architecture"]
    if family not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise StartError(f"{path}: architecture {family} is not supported; this engine runs {known}.")
    num_heads = int(fields[f"{family}.attention.head_count"])
    hidden = int(fields[f"{family}.embedding_length"])
    head_dim = fields.get(f"{family}.attention.key_length") or fields.get(f"{family}.rope.dimension_count")
    return ModelConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=hidden,
        intermediate_size=int(fields[f"{family}.feed_forward_length"]),
        num_layers=int(fields[f"{family}.block_count"]),
        num_heads=num_heads,
        num_kv_heads=int(fields.get(f"{family}.attention.head_count_kv", num_heads)),
        head_dim=int(head_dim or hidden // num_heads),
        rms_norm_eps=float(fields[f"{family}.attention.layer_norm_rms_epsilon"]),
        rope_theta=float(fields.get(f"{family}.rope.freq_base", 10_000.0)),
        max_position=int(fields[f"{family}.context_length"]),
        rope_scaling=_rope_scaling(fields, family, path),
        has_qkv_bias=family == "qwen2",
        has_head_norms=family == "qwen3",
        sliding_window=fields.get(f"{family}.attention.sliding_window") or None,
    )


def _rope_scaling(fields: Mapping[str, Any], family: str, path: Path) -> RopeScaling | None:
    kind = fields.get(f"{family}.rope.scaling.type") or "none"
    # Old files have the factor under another name and no type.
    factor = fields.get(f"{family}.rope.scaling.factor") or fields.get(f"{family}.rope.scale_linear") or 1.0
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return LinearRope(float(factor))
    if kind == "none":
        return None
    raise StartError(f"{path}: rope scaling {kind} is not supported; linear and llama3's are.")


def _weights(
    path: Path,
    header: GgufHeader,
    data: np.memmap[Any, Any],
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    shards: Shards,
) -> dict[str, Tensor]:
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    is_permuted = header.fields["general.architecture"] == "llama"
    weights: dict[str, Tensor] = {}
    for info in header.tensors:
        values = _dequantise(path, info, data)
        if info.name == _ROPE_DIVISORS:
            weights[info.name] = torch.from_numpy(values.copy())
            continue
        kind = info.name.removesuffix(".weight").rsplit(".", 1)[-1]
        if kind in heads and is_permuted:
            values = _unpermute(values, heads[kind])
        # Tensors that were not quantised still lie in the mapped file, which is read-only.
        owned = values if values.flags.writeable else values.copy()
        name = _hf_name(info.name)
        weights[name] = torch.from_numpy(owned)[shards.part(name, owned.shape)].to(dtype)
    return weights


_ROWS_TOGETHER = 16


def _dequantise(path: Path, info: TensorInfo, data: np.memmap[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 with the usual order of dimensions: rows first."""
    try:
        kind = gguf.GGMLQuantizationType(info.kind)
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = math.prod(info.shape) // per_block * block_bytes
        raw = data[info.offset : info.offset + size]
        if len(raw) < size:
            raise StartError(f"{path}: tensor {info.name} is cut off; check that the file was copied whole.")
        # gguf works on 16 rows at a time, for which those of a small model are too short: several count as one.
        rows = math.prod(info.shape[1:])
        values = gguf.dequantize(np.asarray(raw).reshape(rows // math.gcd(rows, _ROWS_TOGETHER), -1), kind)
    except (NotImplementedError, ValueError, KeyError) as error:
        raise StartError(f"{path}: tensor {info.name} is of a kind ({info.kind}) that cannot be read.") from error
    result: np.ndarray[Any, Any] = values.astype(np.float32, copy=False).reshape(info.shape[::-1])
    return result


def _hf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_NAMES and suffix == "weight":
        return f"{_TOP_NAMES[stem]}.weight"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_NAMES and suffix in ("weight", "bias"):
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{suffix}"
    return name


def _unpermute(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """llama's files keep the rows that rotary turns together side by side; we, like Hugging Face, keep halves apart."""
    head_dim = rows.shape[0] // num_heads
    return rows.reshape(num_heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
