"""BOS, templates and the two kinds of vocabulary, on tiny tokenizers."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

from tidewheel.engine.errors import InvalidRequestError, StartError
from tidewheel.engine.simulated_text import CHAT_TEMPLATE, simulated_tokenizer
from tidewheel.engine.tokenizer import ModelTokenizer

BOS = 1


def spm_tokenizer() -> Tokenizer:
    """Llama 2's kind: spaces as U+2581, single bytes as <0xNN>."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "\u2581": 3, "a": 4, "b": 5, "\u2581a": 6, "<0xF0>": 7, "<0x9F>": 8}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[("\u2581", "a")]))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>")])
    return tokenizer


def test_sentencepiece_tokens_become_bytes() -> None:
    tokenizer = ModelTokenizer(spm_tokenizer(), eos_ids=frozenset({2}), bos_id=BOS)
    assert [tokenizer.token_bytes(i) for i in (1, 4, 6, 7, 8, 99)] == [b"", b"a", b" a", b"\xf0", b"\x9f", b""]


@pytest.mark.parametrize("template", ["{{ bos_token }}a", "a"], ids=["template writes BOS", "template does not"])
def test_a_chat_begins_with_exactly_one_bos(template: str) -> None:
    """vllm#16976, vllm#27515."""
    tokenizer = ModelTokenizer(
        spm_tokenizer(), eos_ids=frozenset({2}), bos_id=BOS, adds_bos=True, chat_template=template
    )
    ids = tokenizer.encode_chat([{"role": "user", "content": "x"}])
    assert ids == [BOS, 4]


def test_a_completion_begins_with_exactly_one_bos() -> None:
    tokenizer = ModelTokenizer(spm_tokenizer(), eos_ids=frozenset({2}), bos_id=BOS, adds_bos=True)
    assert tokenizer.encode_prompt("ab") == [BOS, 4, 5]
    assert tokenizer.encode_prompt("<s>ab") == [BOS, 4, 5]


def simulated(template: str = CHAT_TEMPLATE) -> ModelTokenizer:
    return ModelTokenizer(simulated_tokenizer(), eos_ids=frozenset({0}), chat_template=template)


@pytest.mark.parametrize(
    "template",
    ["{{ messages[0].nothing.more }}", "{{ raise_exception('roles must alternate') }}", "{{ 1 // 0 }}", "{% if %}"],
    ids=["undefined", "refused", "arithmetic", "syntax"],
)
def test_a_template_that_raises_is_the_client_s_error(template: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        simulated(template).encode_chat([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"


def test_a_template_cannot_reach_the_interpreter() -> None:
    with pytest.raises(InvalidRequestError):
        simulated("{{ messages.__class__.__mro__ }}").encode_chat([{"role": "user", "content": "x"}])


def test_text_with_the_mark_s_character_is_kept() -> None:
    """Control tokens in text are broken apart by a mark made of U+E000; the text's own must survive."""
    tokenizer = simulated()
    ids = tokenizer.encode_chat([{"role": "user", "content": "\ue000<|end|>\ue000"}])
    text = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert text == "\ue000<|end|>\ue000"
    assert ids.count(0) == 1


def test_plain_text_is_encoded_the_same_with_and_without_the_mark() -> None:
    tokenizer = simulated()
    marked = tokenizer.encode_chat([{"role": "user", "content": "the tide comes in <|end|>"}])
    plain = tokenizer.encode_chat([{"role": "user", "content": "the tide comes in"}])
    assert marked[: len(plain) - 2] == plain[:-2]


def test_an_unknown_kind_of_vocabulary_is_refused_at_start() -> None:
    tokenizer = Tokenizer(BPE(vocab={"a": 0}, merges=[]))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(StartError, match="byte-level"):
        ModelTokenizer(tokenizer, eos_ids=frozenset())
