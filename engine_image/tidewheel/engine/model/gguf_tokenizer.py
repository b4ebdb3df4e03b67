"""The tokenizer that a GGUF file describes, exactly: byte-level BPE, or SentencePiece's pieces with scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE

from tidewheel.engine.errors import StartError
from tidewheel.engine.model.gguf_sentencepiece import sentencepiece_tokenizer
from tidewheel.engine.model.pre_tokenizers import pre_tokenizer_named
from tidewheel.engine.tokenizer import ModelTokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


def gguf_tokenizer(fields: Mapping[str, Any], path: Path) -> ModelTokenizer:
    kind = fields["tokenizer.ggml.model"]
    match kind:
        case "gpt2":
            tokenizer, adds_bos = _byte_level(fields, path)
        case "llama":
            tokenizer, adds_bos = sentencepiece_tokenizer(fields), True
        case _:
            raise StartError(f"{path}: the tokenizer kind {kind!r} is not supported; convert the model to safetensors.")
    _add_tokens(tokenizer, fields)
    ends = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return ModelTokenizer(
        tokenizer,
        eos_ids=frozenset(int(token_id) for token_id in ends if token_id is not None),
        bos_id=fields.get("tokenizer.ggml.bos_token_id"),
        adds_bos=bool(fields.get("tokenizer.ggml.add_bos_token", adds_bos)),
        chat_template=fields.get("tokenizer.chat_template"),
    )


def _byte_level(fields: Mapping[str, Any], path: Path) -> tuple[Tokenizer, bool]:
    name = fields.get("tokenizer.ggml.pre", "gpt-2")
    rule = pre_tokenizer_named(name)
    if rule is None:
        raise StartError(f"{path}: the pre-tokenizer {name!r} is not supported; convert the model to safetensors.")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=rule.ignores_merges))
    tokenizer.pre_tokenizer = rule.pre_tokenizer
    if rule.normalizer is not None:
        tokenizer.normalizer = rule.normalizer
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer, rule.adds_bos


def _add_tokens(tokenizer: Tokenizer, fields: Mapping[str, Any]) -> None:
    """Control tokens stand for themselves and have no text; user-defined ones are text that is never split."""
    control: list[AddedToken] = []
    literal: list[AddedToken] = []
    for token, kind in zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True):
        if kind in (_UNKNOWN, _CONTROL):
            control.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            literal.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(literal)
