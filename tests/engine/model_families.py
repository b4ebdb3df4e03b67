"""Small random models of each family, as folders and GGUF files, with their transformers twins."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from tidewheel.engine.kernels.interface import Shape
from tidewheel.engine.kernels.reference import ReferenceKernels
from tidewheel.engine.model.checkpoint import Checkpoint
from tidewheel.engine.model.llama import Llama
from tidewheel.engine.torch_runner import TorchRunner

transformers = pytest.importorskip("transformers")

VOCAB = 300
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}


@dataclass(frozen=True)
class Family:
    model_type: str
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    tied: bool = False
    rope: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None

    @property
    def gguf_architecture(self) -> str:
        return self.model_type if self.model_type.startswith("qwen") else "llama"

    def fields(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCAB, "hidden_size": 16 * self.num_heads, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": self.num_heads, "num_key_value_heads": self.num_kv_heads, "head_dim": self.head_dim,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": self.tied, "eos_token_id": 2,
            "bos_token_id": 1,
            "rope_parameters": dict(self.rope or {"rope_type": "default", "rope_theta": 10_000.0}),
            **(self.extra or {}),
        }  # fmt: skip


FAMILIES = {
    "llama 2": Family("llama", num_kv_heads=4),
    "llama 2, linear rope": Family("llama", num_kv_heads=4, rope=_LINEAR),
    "llama 3": Family("llama", num_heads=6, head_dim=8, rope=_LLAMA3),
    "smollm": Family("llama", num_heads=3, num_kv_heads=1, tied=True),
    "mistral": Family("mistral", extra={"sliding_window": None}),
    "qwen 2": Family("qwen2", tied=True),
    "qwen 3": Family("qwen3", head_dim=32),
}


def random_twin(family: Family, *, seed: int = 0) -> Any:
    """A transformers model in float32 whose numbers are far enough apart for a sure argmax."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(family.model_type, **family.fields())
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)  # sharper logits than the initialiser gives
        else:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)  # norms are all ones and biases all zeros otherwise
    return model


def save_folder(folder: Path, family: Family, *, seed: int = 0) -> Any:
    """As transformers itself saves it; the twin is returned."""
    twin = random_twin(family, seed=seed)
    twin.save_pretrained(folder)
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}, merges=[]))
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return twin


def rewrite_weights(folder: Path, change: Any) -> None:
    """Apply `change` to the folder's tensors by name."""
    from safetensors.torch import load_file

    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, str(file))


def edit_config(folder: Path, **changes: object) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "model.embed_tokens": "token_embd",
    "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, rest = stem.split(".", 3)
        return f"blk.{index}.{_GGUF_NAMES[rest]}.{suffix}"
    return f"{_GGUF_NAMES[stem]}.{suffix}"


def permuted(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows, as its converter writes it."""
    return rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def save_gguf(
    path: Path,
    family: Family,
    twin: Any,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    quantise: Callable[..., np.ndarray] = gguf.quantize,
) -> None:
    """What llama.cpp's converter would write; matrices in `kind`."""
    writer = gguf.GGUFWriter(str(path), family.gguf_architecture)
    fields = family.fields()
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_head_count(family.num_heads)
    writer.add_head_count_kv(family.num_kv_heads)
    writer.add_key_length(family.head_dim)
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_rope_freq_base(10_000.0)
    _add_rope(writer, family)
    add_byte_vocabulary(writer)
    for name, tensor in twin.state_dict().items():
        if family.tied and name == "lm_head.weight":
            continue
        values = tensor.numpy()
        heads = {"q_proj": family.num_heads, "k_proj": family.num_kv_heads}.get(name.split(".")[-2])
        if heads and family.gguf_architecture == "llama":
            values = permuted(values, heads)
        if values.ndim == 2 and kind is not gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), quantise(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_rope(writer: gguf.GGUFWriter, family: Family) -> None:
    rope = family.rope or {}
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "llama3":
        # llama.cpp's converter writes the divisor of each frequency, by Meta's formula.
        divisors = []
        for index in range(family.head_dim // 2):
            wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * index / family.head_dim)
            original = rope["original_max_position_embeddings"]
            smooth = (original / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            smooth = min(1.0, max(0.0, smooth))
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
        writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))


def add_byte_vocabulary(writer: gguf.GGUFWriter) -> None:
    alphabet = [*sorted(ByteLevel.alphabet()), "ab"]
    tokens = alphabet + [f"<|{index}|>" for index in range(VOCAB - len(alphabet))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * len(alphabet) + [3] * (VOCAB - len(alphabet)))
    writer.add_eos_token_id(VOCAB - 1)


def make_runner(checkpoint: Checkpoint, *, block_size: int = 4, num_blocks: int = 40) -> TorchRunner:
    config = checkpoint.config
    shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, block_size)
    model = Llama(config, dict(checkpoint.weights), kernels=ReferenceKernels(), shape=shape)
    per_block = 2 * block_size * config.num_kv_heads * config.head_dim * 4 * config.num_layers
    return TorchRunner(
        model,
        kernels=ReferenceKernels(),
        dtype=torch.float32,
        device=torch.device("cpu"),
        kv_memory=num_blocks * per_block,
    )
