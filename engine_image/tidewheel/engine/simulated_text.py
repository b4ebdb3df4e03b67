"""The simulated runner's vocabulary: special tokens, all 256 bytes, and some words so that replies read like text."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from tidewheel.engine.byte_level import BYTE_TO_CHAR

_SPECIAL = ("<|end|>", "<|system|>", "<|developer|>", "<|user|>", "<|assistant|>", "<|tool|>")
_WORDS = (
    "the tide comes in and goes out again under a pale moon while small boats wait near harbour stones for water to "
    "lift them one by one then turn toward open sea with nets ropes lamps bread salt wind rain sun sand shells gulls "
    "crabs waves foam deep blue green grey slow fast high low old new wheel mill river bridge road town house light "
    "people work sing sleep wake count hours days months years tables charts numbers tokens blocks lanes"
)

END_ID = 0
ASSISTANT_ID = _SPECIAL.index("<|assistant|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + (message['content'] or '') + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]], int]:
    vocabulary = {token: index for index, token in enumerate(_SPECIAL)}
    merges: list[tuple[str, str]] = []
    for char in BYTE_TO_CHAR.values():
        vocabulary[char] = len(vocabulary)
    space = BYTE_TO_CHAR[ord(" ")]
    words = [space + word for word in dict.fromkeys(_WORDS.split())]
    # BPE reaches a word through its prefixes; those come first, so that the words are the last ids.
    for word in words:
        for end in range(2, len(word)):
            if word[:end] not in vocabulary and word[:end] not in words:
                vocabulary[word[:end]] = len(vocabulary)
    first_word = len(vocabulary)
    for word in words:
        vocabulary[word] = len(vocabulary)
        merges += [pair for end in range(1, len(word)) if (pair := (word[:end], word[end])) not in merges]
    return vocabulary, merges, first_word


_VOCABULARY, _MERGES, FIRST_WORD_ID = _vocabulary()
SIMULATED_VOCAB = len(_VOCABULARY)


def simulated_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE(vocab=_VOCABULARY, merges=_MERGES))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    return tokenizer
