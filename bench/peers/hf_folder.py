"""Writes the packaged SmolLM2 GGUF as a Hugging Face folder in bf16, which is what vLLM reads.

Weights, un-permuted q and k, and the digit split of the tokenizer come from the engine's own GGUF reader, which is
tested against transformers.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tidewheel.engine.artifact import resolve_model
from tidewheel.engine.model.checkpoint import Checkpoint, load_checkpoint


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """All that vLLM and transformers need."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(checkpoint.weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = checkpoint.tokenizer
    tokenizer._tokenizer.save(str(folder / "tokenizer.json"))
    eos = min(tokenizer.eos_ids)
    documents = {
        "config.json": _config(checkpoint, eos),
        "generation_config.json": {"eos_token_id": eos, "do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": tokenizer._chat_template,
            "model_max_length": checkpoint.config.max_position,
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2))


def _config(checkpoint: Checkpoint, eos: int) -> dict[str, object]:
    config = checkpoint.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": "lm_head.weight" not in checkpoint.weights,
        "eos_token_id": eos,
        "torch_dtype": "bfloat16",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.hf_folder", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    path = resolve_model("smollm2", sha256=None, needs_file=True).path
    assert path is not None
    write(load_checkpoint(path, dtype=torch.bfloat16), folder)


if __name__ == "__main__":
    main()
