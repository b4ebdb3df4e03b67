"""Structured output: a reply that matches a JSON schema, a regular expression, a grammar or one of some choices.

llguidance does the work. A grammar is compiled in a thread before its request exists, so a bad one is the client's 400;
after that every step asks the matcher which tokens may come next. A matcher that gives up fails its request: nothing
unconstrained is ever sent in its place.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tidewheel.engine.errors import InvalidRequestError
from tidewheel.engine.tokenizer import ModelTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_GRAMMAR_CHARACTERS = 256 << 10
_MAX_CACHED = 64
# Unlimited white space is valid JSON, and small models can write it until their tokens run out.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,16}"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a reply must match, as the client wrote it. `param` is the field to blame."""

    kind: Literal["json", "regex", "lark"]
    text: str  # a JSON schema as JSON, a regular expression, a grammar in Lark or GBNF
    param: str


def choice_grammar(choices: list[str], *, param: str) -> Grammar:
    return Grammar("lark", "start: " + " | ".join(json.dumps(c, ensure_ascii=False) for c in choices), param)


class Matcher:
    """One reply's place in its grammar. Belongs to the step loop."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed_tokens(self) -> bytes | None:
        """A bit for each token id, lowest first; None if the grammar cannot go on."""
        mask = self._matcher.compute_bitmask()
        return None if self._matcher.is_error() else mask

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.consume_token(token_id))

    def copy(self) -> Matcher:
        return Matcher(self._matcher.deep_copy())


class GrammarCompiler:
    """Compiles in a thread of its own, and remembers what it compiled last."""

    def __init__(self, tokenizer: ModelTokenizer, *, vocab_size: int) -> None:
        """`vocab_size` is the width of the logits."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._executor: Executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._cache: OrderedDict[Grammar, Matcher] = OrderedDict()

    def prepare(self) -> None:
        """Lay out the vocabulary: a few tenths of a second in which no other Python runs, so it is done at start."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer, self._vocab_size)

    async def compile(self, grammar: Grammar) -> Matcher:
        """Raises InvalidRequestError for a grammar that is wrong or too large."""
        if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
            message = f"{grammar.param}: a grammar may have {MAX_GRAMMAR_CHARACTERS} characters."
            raise InvalidRequestError(message, param=grammar.param, code="invalid_grammar")
        known = self._cache.get(grammar)
        if known is None:
            known = await asyncio.get_running_loop().run_in_executor(self._executor, self._compile, grammar)
            self._cache[grammar] = known
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(grammar)
        return known.copy()

    def _compile(self, grammar: Grammar) -> Matcher:
        from llguidance import LLMatcher, LLParserLimits

        self.prepare()
        assert self._vocabulary is not None
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._vocabulary, _source(grammar), log_level=0, limits=limits)
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split("\n", 1)[0].split())[:200]
            message = f"{grammar.param} cannot be compiled: {reason}."
            raise InvalidRequestError(message, param=grammar.param, code="invalid_grammar")
        return Matcher(matcher)


def _source(grammar: Grammar) -> str:
    """llguidance's own form."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    match grammar.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(grammar.text, overrides={"whitespace_pattern": _WHITE_SPACE})
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "lark":
            try:
                return LLMatcher.grammar_from_lark(any_to_lark(grammar.text))
            except Exception as error:
                # The converter raises whatever went wrong in it.
                message = f"{grammar.param} is not a grammar in Lark or GBNF."
                raise InvalidRequestError(message, param=grammar.param, code="invalid_grammar") from error


class _Vocabulary:
    """The model's tokens as llguidance wants them: their bytes, control tokens marked by an impossible first byte."""

    special_token_ids: list[int]

    def __init__(self, tokenizer: ModelTokenizer, vocab_size: int) -> None:
        plain = [tokenizer.token_bytes(index) for index in range(vocab_size)]
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = None
        self.special_token_ids = [index for index, text in enumerate(plain) if not text]
        self.tokens = [text or b"\xff<%d>" % index for index, text in enumerate(plain)]

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode_plain(text if isinstance(text, str) else text.decode())


def _vocabulary(tokenizer: ModelTokenizer, vocab_size: int) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapper = TokenizerWrapper(_Vocabulary(tokenizer, vocab_size))
    return LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=sorted(tokenizer.eos_ids))
