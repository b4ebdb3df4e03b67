"""A Hugging Face folder: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from tidewheel.engine.errors import StartError
from tidewheel.engine.model.checkpoint import Checkpoint
from tidewheel.engine.model.config import LinearRope, Llama3Rope, ModelConfig, RopeScaling
from tidewheel.engine.model.shards import Shards
from tidewheel.engine.tokenizer import ModelTokenizer

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def load_hf_folder(folder: Path, *, dtype: torch.dtype, shards: Shards) -> Checkpoint:
    raw = _read_json(folder / "config.json")
    try:
        config = _config(raw, folder)
    except KeyError as error:
        raise StartError(f"{folder}/config.json: the field {error} is missing.") from error
    weights = _weights(folder, dtype, shards)
    if raw.get("tie_word_embeddings", False):
        weights.pop("lm_head.weight", None)
    return Checkpoint(config, weights, _tokenizer(folder, raw))


def _config(raw: dict[str, Any], folder: Path) -> ModelConfig:
    architecture = (raw.get("architectures") or ["?"])[0]
    if architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise StartError(f"{folder}: architecture {architecture} is not supported; this engine runs {known}.")
    for field in ("attention_bias", "mlp_bias"):
        if raw.get(field):
            raise StartError(f"{folder}/config.json: {field} = {raw[field]} is not supported.")
    if raw.get("hidden_act", "silu") != "silu":
        raise StartError(f"{folder}/config.json: hidden_act = {raw['hidden_act']} is not supported; only silu is.")
    rope = raw.get("rope_parameters") or {}
    scaling = _rope_scaling(raw.get("rope_scaling") or rope, folder)
    num_heads = int(raw["num_attention_heads"])
    return ModelConfig(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // num_heads),
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(raw.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
        max_position=_max_position(raw, scaling),
        rope_scaling=scaling,
        has_qkv_bias=architecture == "Qwen2ForCausalLM",
        has_head_norms=architecture == "Qwen3ForCausalLM",
        sliding_window=_sliding_window(raw, architecture),
    )


def _max_position(raw: dict[str, Any], scaling: RopeScaling | None) -> int:
    """Files with linear scaling state the length before it, unless they name that one as the original."""
    stated = int(raw["max_position_embeddings"])
    named = (raw.get("rope_scaling") or raw.get("rope_parameters") or {}).get("original_max_position_embeddings")
    return int(stated * scaling.factor) if isinstance(scaling, LinearRope) and named is None else stated


def _sliding_window(raw: dict[str, Any], architecture: str) -> int | None:
    # Qwen's files name a window that is off unless a second field says otherwise; Llama has none.
    is_on = raw.get("use_sliding_window", architecture == "MistralForCausalLM")
    window = raw.get("sliding_window")
    return int(window) if is_on and window is not None else None


def _rope_scaling(raw: dict[str, Any], folder: Path) -> RopeScaling | None:
    kind = raw.get("rope_type") or raw.get("type") or "default"
    match kind:
        case "default":
            return None
        case "linear":
            return LinearRope(float(raw["factor"]))
        case "llama3":
            return Llama3Rope(
                factor=float(raw["factor"]),
                low_freq_factor=float(raw["low_freq_factor"]),
                high_freq_factor=float(raw["high_freq_factor"]),
                original_max_position=int(raw["original_max_position_embeddings"]),
            )
    raise StartError(f"{folder}/config.json: rope scaling {kind} is not supported; linear and llama3 are.")


def _weights(folder: Path, dtype: torch.dtype, shards: Shards) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise StartError(f"{folder} holds no .safetensors file; other formats are not read.")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    view = tensors.get_slice(name)
                    weights[name] = view[shards.part(name, view.get_shape())].to(dtype)
        except (SafetensorError, OSError) as error:
            raise StartError(f"{file} cannot be read ({error}); check that it was copied whole.") from error
    return {name: tensor for name, tensor in weights.items() if "rotary_emb" not in name}


def _tokenizer(folder: Path, raw: dict[str, Any]) -> ModelTokenizer:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise StartError(f"{path} is missing; save the model with its fast tokenizer.")
    settings = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json", optional=True)
    eos = generation.get("eos_token_id", raw.get("eos_token_id"))
    tokenizer = Tokenizer.from_file(str(path))
    bos_token = _token_text(settings.get("bos_token"))
    bos_id = None if bos_token is None else tokenizer.token_to_id(bos_token)
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text(encoding="utf-8") if template_file.exists() else settings.get("chat_template")
    return ModelTokenizer(
        tokenizer,
        eos_ids=frozenset([eos] if isinstance(eos, int) else eos or []),
        bos_id=bos_id,
        # Some files (Llama 3's) say it only in what their tokenizer adds to a text by itself.
        adds_bos=bool(settings.get("add_bos_token", bos_id is not None and tokenizer.encode("").ids[:1] == [bos_id])),
        chat_template=template,
    )


def _token_text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise StartError(f"{path} cannot be read ({error}).") from error
