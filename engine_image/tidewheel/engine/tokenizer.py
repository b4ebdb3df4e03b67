"""One model's text side: token ids, their bytes, and the chat template."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidewheel.engine.byte_level import CHAR_TO_BYTE
from tidewheel.engine.errors import InvalidRequestError, StartError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPM_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class ModelTokenizer:
    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        eos_ids: frozenset[int],
        bos_id: int | None = None,
        adds_bos: bool = False,
        chat_template: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._bos_id = bos_id
        self._adds_bos = adds_bos and bos_id is not None
        self._chat_template = chat_template
        self.eos_ids = eos_ids
        self._added = {i: (t.content, t.special) for i, t in tokenizer.get_added_tokens_decoder().items()}
        self._bytes: dict[int, bytes] = {i: b"" if special else t.encode() for i, (t, special) in self._added.items()}
        self._control_ids = {content: i for i, (content, special) in self._added.items() if special}
        controls = sorted(self._control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, controls)) or r"(?!)")
        self._is_byte_level = _is_byte_level(tokenizer)

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode_prompt(self, text: str) -> list[int]:
        """A completion prompt: with BOS where the model wants one; control tokens in it count as such."""
        return self._with_bos(self._encode(text))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continues: bool = False,
    ) -> list[int]:
        """Render and encode a conversation. Control tokens come from the template only, never from people's text."""
        mark = ""
        if any(self._control.search(text) for text in _texts([messages, tools])):
            # Break control tokens apart with a mark nobody can guess, and take it out again after the split.
            mark = f"\ue000{secrets.token_hex(8)}\ue000"
            messages, tools = _map_texts([messages, tools], lambda text: self._control.sub(_broken_by(mark), text))
        rendered = self.render(messages, tools=tools, continues=continues)
        return self._with_bos(self._encode_marked(rendered, mark) if mark else self._encode(rendered))

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continues: bool = False,
    ) -> str:
        if self._chat_template is None:
            raise InvalidRequestError(
                "This model has no chat template; use /v1/completions with a prompt instead.",
                param="messages",
                code="no_chat_template",
            )
        from jinja2.exceptions import TemplateError

        mistakes = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
        try:
            return str(
                self._template.render(
                    messages=list(messages),
                    tools=None if tools is None else list(tools),
                    add_generation_prompt=not continues,
                    bos_token=self._token_text(self._bos_id),
                    eos_token=self._token_text(min(self.eos_ids, default=None)),
                )
            )
        except mistakes as error:
            message = f"The chat template does not accept these messages: {error}."
            raise InvalidRequestError(message, param="messages", code="chat_template_error") from error

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes the token stands for; empty for control tokens and ids beyond the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._bytes_of(self._tokenizer.id_to_token(token_id))
        return known

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def prepare(self) -> None:
        """Make now what the first requests would else wait for, and every stream beside them."""
        _ = self._plain_tokenizer, self.definition
        if self._chat_template is not None:
            with contextlib.suppress(Exception):
                # A template that does not compile is told to those who use it.
                _ = self._template

    @cached_property
    def definition(self) -> bytes:
        """As JSON: what another program needs to count and render exactly as this engine does."""
        rest = {
            "chat_template": self._chat_template,
            "bos_token": self._token_text(self._bos_id),
            "bos_token_id": self._bos_id,
            "adds_bos_token": self._adds_bos,
            "eos_token_ids": sorted(self.eos_ids),
        }
        # The tokenizer writes itself as JSON; megabytes of it need not be read and written again.
        return b'{"tokenizer":' + self._tokenizer.to_str().encode() + b"," + json.dumps(rest).encode()[1:]

    @cached_property
    def _template(self) -> Any:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise InvalidRequestError(f"The chat template refuses these messages: {message}", param="messages")

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = refuse
        return environment.from_string(self._chat_template or "")

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _with_bos(self, ids: list[int]) -> list[int]:
        """Exactly one BOS where the model wants one: templates often write it themselves."""
        if not self._adds_bos or self._bos_id is None or ids[:1] == [self._bos_id]:
            return ids
        return [self._bos_id, *ids]

    def _encode_marked(self, rendered: str, mark: str) -> list[int]:
        ids: list[int] = []
        start = 0
        for match in self._control.finditer(rendered):
            ids += self.encode_plain(rendered[start : match.start()].replace(mark, ""))
            ids.append(self._control_ids[match.group()])
            start = match.end()
        return ids + self.encode_plain(rendered[start:].replace(mark, ""))

    def encode_plain(self, text: str) -> list[int]:
        """What people wrote: control tokens in it are ordinary text."""
        return list(self._plain_tokenizer.encode(text, add_special_tokens=False).ids) if text else []

    @cached_property
    def _plain_tokenizer(self) -> Tokenizer:
        """The same vocabulary, with control tokens read as ordinary text."""
        from tokenizers import Tokenizer

        plain = Tokenizer.from_str(self._tokenizer.to_str())
        plain.encode_special_tokens = True
        return plain

    def _token_text(self, token_id: int | None) -> str | None:
        return None if token_id is None else self._tokenizer.id_to_token(token_id)

    def _bytes_of(self, token: str | None) -> bytes:
        if token is None:
            return b""
        if self._is_byte_level:
            return bytes(CHAR_TO_BYTE[char] for char in token if char in CHAR_TO_BYTE)
        match = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(match[1], 16)]) if match else token.replace(_SPM_SPACE, " ").encode()


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    decoder = json.dumps(json.loads(tokenizer.to_str())["decoder"])
    if "ByteLevel" in decoder:
        return True
    if "ByteFallback" in decoder or "Metaspace" in decoder:
        return False
    raise StartError("The tokenizer's decoder is neither byte-level nor SentencePiece; no other kind is supported.")


def _broken_by(mark: str) -> Any:
    return lambda match: match.group()[0] + mark + match.group()[1:]


def _texts(value: Any) -> Iterator[str]:
    """Every string in it, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for part in (*value.keys(), *value.values()) for text in _texts(part))
    elif isinstance(value, Sequence):
        yield from (text for part in value for text in _texts(part))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_texts(key, change): _map_texts(part, change) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_map_texts(part, change) for part in value]
    return value
