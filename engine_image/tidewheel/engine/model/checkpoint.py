"""A loaded model artefact, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tidewheel.engine.errors import StartError
from tidewheel.engine.model.config import ModelConfig
from tidewheel.engine.model.shards import WHOLE, Shards
from tidewheel.engine.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights under their Hugging Face names. `lm_head.weight` is absent where the head is tied."""

    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: ModelTokenizer


def load_checkpoint(path: Path, *, dtype: torch.dtype, shards: Shards = WHOLE) -> Checkpoint:
    """Only the rank's part of each weight is kept.

    Raises StartError for a file that is damaged, incomplete or of an unsupported kind.
    """
    if path.is_dir():
        from tidewheel.engine.model.hf_folder import load_hf_folder

        checkpoint = load_hf_folder(path, dtype=dtype, shards=shards)
    else:
        from tidewheel.engine.model.gguf_file import load_gguf

        checkpoint = load_gguf(path, dtype=dtype, shards=shards)
    check_weights(checkpoint, path, shards)
    return checkpoint


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, wide = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    for index in range(config.num_layers):
        parts = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }
        if config.has_head_norms:
            parts |= {"self_attn.q_norm": (config.head_dim,), "self_attn.k_norm": (config.head_dim,)}
        shapes |= {f"model.layers.{index}.{part}.weight": shape for part, shape in parts.items()}
        if config.has_qkv_bias:
            widths = {"q_proj": q, "k_proj": kv, "v_proj": kv}
            shapes |= {f"model.layers.{index}.self_attn.{part}.bias": (width,) for part, width in widths.items()}
    return shapes


def check_weights(checkpoint: Checkpoint, path: Path, shards: Shards = WHOLE) -> None:
    """Before the first request, not in the middle of one."""
    expected = expected_shapes(checkpoint.config)
    optional = {"lm_head.weight": (checkpoint.config.vocab_size, checkpoint.config.hidden_size)}
    for name, whole in expected.items():
        shape = shards.shape(name, whole)
        if name not in checkpoint.weights:
            raise StartError(f"{path}: tensor {name} is missing; the file is incomplete or of another architecture.")
        if tuple(checkpoint.weights[name].shape) != shape:
            found = tuple(checkpoint.weights[name].shape)
            raise StartError(f"{path}: tensor {name} has shape {found}, its configuration says {shape}.")
    if surplus := checkpoint.weights.keys() - expected.keys() - optional.keys():
        raise StartError(
            f"{path}: tensor {min(surplus)} does not belong to this architecture; adapters and other biases are not "
            "supported."
        )
