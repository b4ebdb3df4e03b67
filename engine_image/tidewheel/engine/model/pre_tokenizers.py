"""How byte-level vocabularies split text before they merge. GGUF files name a rule; each is a tokenizer's own."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _REST
)


@dataclass(frozen=True, slots=True)
class Rule:
    pre_tokenizer: PreTokenizer
    normalizer: Normalizer | None = None
    ignores_merges: bool = False  # a piece that is in the vocabulary is one token, however its merges would go
    adds_bos: bool = False  # where the file does not say


def pre_tokenizer_named(name: str) -> Rule | None:
    match name:
        case "gpt-2":
            return Rule(ByteLevel(add_prefix_space=False, use_regex=True))
        case "smollm":
            # Every digit on its own, then GPT-2's split.
            digits = Digits(individual_digits=True)
            return Rule(Sequence([digits, ByteLevel(add_prefix_space=False, use_regex=True)]))
        case "llama-bpe" | "llama3" | "llama-v3":
            return Rule(_split_by(_LLAMA3), ignores_merges=True, adds_bos=True)
        case "qwen2" | "deepseek-r1-qwen":
            return Rule(_split_by(_QWEN2), normalizer=NFC())
        case "tekken":
            return Rule(_split_by(_TEKKEN), ignores_merges=True)
    return None


def _split_by(pattern: str) -> PreTokenizer:
    split = Split(Regex(pattern), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
