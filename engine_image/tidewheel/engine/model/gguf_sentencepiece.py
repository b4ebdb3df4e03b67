"""SentencePiece's BPE from its pieces and their scores: the pair whose merged piece has the best score merges first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

_NORMAL, _UNKNOWN, _USER_DEFINED = 1, 2, 4
_SPACE = "\u2581"


def sentencepiece_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    scores: list[float] = fields["tokenizer.ggml.scores"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    normal = {token for token, kind in zip(tokens, kinds, strict=True) if kind in (_NORMAL, _USER_DEFINED)}
    by_rank = sorted((index for index, kind in enumerate(kinds) if kind == _NORMAL), key=lambda i: (-scores[i], i))
    merges = [pair for index in by_rank for pair in _splits(tokens[index], normal)]
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", _SPACE)
    # The prefix comes back after each control token, as in SentencePiece's own reading of such a text.
    has_prefix = fields.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces] if has_prefix else [spaces])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _splits(piece: str, vocabulary: set[str]) -> Iterator[tuple[str, str]]:
    for at in range(1, len(piece)):
        if piece[:at] in vocabulary and piece[at:] in vocabulary:
            yield piece[:at], piece[at:]
