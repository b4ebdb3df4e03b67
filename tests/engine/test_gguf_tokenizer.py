"""Tokenizers from GGUF fields against those who made the rules: SentencePiece itself, and tokenizers' own files."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from tidewheel.engine.errors import StartError
from tidewheel.engine.model.gguf_tokenizer import gguf_tokenizer
from tidewheel.engine.model.pre_tokenizers import pre_tokenizer_named
from tidewheel.engine.tokenizer import ModelTokenizer

HERE = Path("x.gguf")
CORPUS = Path(__file__).parent
TEXTS = [
    "Hello world", " two  spaces ", "tabs\tand\nlines\n\n", "naïve café", "数字 123 ١٢٣", "🌊🌊 waves", "def f(x): x",
    "", " ", "a", "It's we'll I'M", "MiXeD CaSe", "e\u0301 combining", "ends with space ", "-- ... !!", "x" * 200,
]  # fmt: skip


def sources() -> str:
    """This folder's own text; control tokens in a prompt count as such, which SentencePiece's encode() never does."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(CORPUS.glob("test_*.py")))[:120_000]
    return text.replace("<", "(")


@pytest.fixture(scope="module")
def pieces() -> sentencepiece.SentencePieceProcessor:
    """Llama 2's settings: BPE, byte fall-back, no normalisation, digits apart, a space before the text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sources().splitlines()), model_writer=model, model_type="bpe", vocab_size=900,
        byte_fallback=True, normalization_rule_name="identity", split_digits=True, add_dummy_prefix=True,
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, character_coverage=0.9995, minloglevel=2,
        num_threads=1,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def gguf_fields(pieces: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """As llama.cpp's converter writes them."""

    def kind(index: int) -> int:
        if pieces.is_unknown(index):
            return 2
        if pieces.is_control(index):
            return 3
        return 6 if pieces.is_byte(index) else 1

    ids = range(pieces.get_piece_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [pieces.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [pieces.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [kind(i) for i in ids],
        "tokenizer.ggml.bos_token_id": pieces.bos_id(),
        "tokenizer.ggml.eos_token_id": pieces.eos_id(),
    }


def random_texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    text = sources()
    cut = [text[at : at + rng.randint(1, 80)] for at in (rng.randrange(len(text)) for _ in range(count))]
    odd = ["".join(rng.choices("ab \n\té🌊中0129_'", k=rng.randint(1, 30))) for _ in range(count)]
    return cut + odd


def test_ids_equal_sentencepiece_s_own(pieces: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = gguf_tokenizer(gguf_fields(pieces), HERE)
    for text in [*TEXTS, *random_texts(300, seed=1)]:
        expected = pieces.encode(text, add_bos=True)
        assert tokenizer.encode_prompt(text) == expected, repr(text)


def test_text_comes_back_byte_for_byte_behind_one_space(pieces: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = gguf_tokenizer(gguf_fields(pieces), HERE)
    for text in filter(None, [*TEXTS, *random_texts(50, seed=2)]):
        ids = tokenizer.encode_prompt(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == b" " + text.encode()


def test_control_tokens_in_a_chat_stay_text(pieces: sentencepiece.SentencePieceProcessor) -> None:
    fields = gguf_fields(pieces) | {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    tokenizer = gguf_tokenizer(fields, HERE)
    ids = tokenizer.encode_chat([{"role": "user", "content": "</s><s>x"}])
    assert (ids.count(pieces.bos_id()), ids.count(pieces.eos_id())) == (1, 0)
    assert b"</s><s>x" in b"".join(map(tokenizer.token_bytes, ids))


# What the models' own tokenizer.json files hold; the rule behind a name must be the same.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def reference(name: str) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in ("gpt-2", "smollm"))
    first: Any = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        "llama-bpe": [_LLAMA3_SPLIT],
        "qwen2": [_QWEN2_SPLIT],
        "tekken": [_TEKKEN_SPLIT],
    }[name]
    steps = [pre_tokenizers.Split(Regex(s), "isolated") if isinstance(s, str) else s for s in first]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(sources().splitlines(), trainer)
    return tokenizer


def fields_of(name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.token_type": [3 if token == "<|end|>" else 1 for token in tokens],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_ids_equal_those_of_the_model_s_own_file(name: str) -> None:
    expected = reference(name)
    tokenizer = gguf_tokenizer(fields_of(name, expected), HERE)
    for text in [*TEXTS, *random_texts(150, seed=3)]:
        assert tokenizer.encode_prompt(text) == expected.encode(text).ids, repr(text)


def make(name: str, **changes: Any) -> ModelTokenizer:
    return gguf_tokenizer(fields_of(name, reference(name)) | changes, HERE)


def test_a_whole_piece_is_one_token_where_merges_are_ignored() -> None:
    """Llama 3's rule: a piece in the vocabulary is taken whole even if no merges lead to it."""
    fields = fields_of("llama-bpe", reference("llama-bpe"))
    fields["tokenizer.ggml.tokens"].append("qzqz")
    fields["tokenizer.ggml.token_type"].append(1)
    assert gguf_tokenizer(fields, HERE).encode_prompt("qzqz") == [len(fields["tokenizer.ggml.tokens"]) - 1]


def test_llama_3_begins_with_bos_though_its_file_does_not_say_so() -> None:
    fields = fields_of("llama-bpe", reference("llama-bpe")) | {"tokenizer.ggml.bos_token_id": 0}
    del fields["tokenizer.ggml.add_bos_token"]
    assert gguf_tokenizer(fields, HERE).encode_prompt("a")[0] == 0


@pytest.mark.parametrize(
    "changes",
    [{"tokenizer.ggml.pre": "unheard-of"}, {"tokenizer.ggml.model": "t5"}],
    ids=["pre-tokenizer", "kind"],
)
def test_an_unknown_rule_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(StartError, match="not supported"):
        make("gpt-2", **changes)
    assert pre_tokenizer_named("unheard-of") is None
