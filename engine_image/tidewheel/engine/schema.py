"""Request bodies. What is known but not supported is refused by name; what is unknown has no effect, as with OpenAI."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tidewheel.engine.errors import InvalidRequestError
from tidewheel.engine.request import SamplingParams
from tidewheel.engine.response_format import StructureFields
from tidewheel.engine.structured import Grammar
from tidewheel.engine.tools import MAX_TOOLS, Tool, ToolChoice, ToolUse, tool_use

MAX_CHOICES = 16
MAX_STOPS = 4
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    # Field -> the values that ask for nothing and are therefore fine.
    "audio": (None,),
    "best_of": (None, 1),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logprob_token_ids": (None, []),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "prompt_logprobs": (None,),
    "reasoning_effort": (None, "none"),
    "suffix": (None, ""),
    "use_beam_search": (None, False),
    "web_search_options": (None,),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "skip_special_tokens": (None, True),
    "include_stop_str_in_output": (None, False),
    "truncate_prompt_tokens": (None,),
}

TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(_Body):
    include_usage: bool = False


class GenerationBody(StructureFields):
    _of_other_endpoints: ClassVar[dict[str, tuple[Any, ...]]] = {}

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=64)
    ignore_eos: bool = False
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = None
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: Any) -> Any:
        if isinstance(body, dict):
            for name, harmless in (_UNSUPPORTED | cls._of_other_endpoints).items():
                if name in body and body[name] not in harmless:
                    raise InvalidRequestError(f"{name} is not supported by this engine; leave it out.", param=name)
        return body

    @model_validator(mode="after")
    def _check_structure(self) -> GenerationBody:
        self.check_beside(self.grammar())
        return self

    def check_beside(self, grammar: Grammar | None) -> None:
        """A structure says by itself where the reply ends."""
        for name, is_asked in (("ignore_eos", self.ignore_eos), ("min_tokens", self.min_tokens > 0)):
            if grammar is not None and is_asked:
                raise InvalidRequestError(f"{name} cannot be combined with {grammar.param}.", param=name)

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: str | list[str] | None) -> str | list[str] | None:
        stops = [stop] if isinstance(stop, str) else stop or []
        if len(stops) > MAX_STOPS or not all(stops):
            raise ValueError(f"must be up to {MAX_STOPS} strings, none of them empty")
        return stop

    @field_validator("logit_bias")
    @classmethod
    def _check_logit_bias(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        if bias and (len(bias) > MAX_LOGIT_BIAS or not all(key.isascii() and key.isdigit() for key in bias)):
            raise ValueError(f"must map at most {MAX_LOGIT_BIAS} token ids (digits) to numbers from -100 to 100")
        return bias

    @property
    def num_logprobs(self) -> int | None:
        raise NotImplementedError

    def sampling(self, *, vocab_size: int, child: int, default_seed: int) -> SamplingParams:
        """`child` counts the n choices of one prompt; each has a seed of its own."""
        bias = tuple((int(token), value) for token, value in (self.logit_bias or {}).items())
        for name, ids in (("logit_bias", [token for token, _ in bias]), ("stop_token_ids", self.stop_token_ids)):
            if any(token >= vocab_size for token in ids):
                raise InvalidRequestError(f"{name}: token ids must be below {vocab_size}.", param=name)
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            logit_bias=bias,
            seed=(default_seed if self.seed is None else self.seed) + child,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
            num_logprobs=self.num_logprobs,
        )

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CalledFunction(_Body):
    name: str
    arguments: str


class ToolCall(_Body):
    """What an earlier reply called, as the client sends it back."""

    type: Literal["function"] = "function"
    id: str | None = None
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Templates write the arguments as JSON themselves, so they get the object."""
        try:
            arguments = orjson.loads(self.function.arguments or "{}")
        except orjson.JSONDecodeError:
            param = "messages"
            raise InvalidRequestError("messages: a tool call's arguments are not valid JSON.", param=param) from None
        function = {"name": self.function.name, "arguments": arguments}
        return {"type": "function", "id": self.id, "function": function}


class TextPart(_Body):
    type: Literal["text"]
    text: str


class Message(_Body):
    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError("content may be null only for the assistant")
        return self

    def for_template(self) -> dict[str, Any]:
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        message = {**(self.model_extra or {}), "role": self.role, "content": content or ""}
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message


class ChatBody(GenerationBody):
    _of_other_endpoints: ClassVar[dict[str, tuple[Any, ...]]] = {"echo": (None, False)}

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def tool_use(self, chat_template: str | None) -> ToolUse | None:
        several = self.parallel_tool_calls is not False
        return tool_use(self.tools or [], self.tool_choice, parallel=several, chat_template=chat_template)

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
        return self

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionBody(GenerationBody):
    _of_other_endpoints: ClassVar[dict[str, tuple[Any, ...]]] = {"tools": (None, []), "tool_choice": (None, "none")}

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    # The last ones of the prompt's tokens that an earlier attempt wrote: penalties and seeds count them as output.
    emitted_tokens: Annotated[int, Field(ge=0)] = 0
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def _check_echo(self) -> CompletionBody:
        if self.echo and self.logprobs is not None:
            raise InvalidRequestError("echo with logprobs is not supported: prompts have none here.", param="echo")
        return self

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [part for part in self.prompt if isinstance(part, int)]
        return [ids] if ids else [part for part in self.prompt if not isinstance(part, int)]


Body = TypeVar("Body", bound=GenerationBody)


def parse(kind: type[Body], raw: bytes) -> Body:
    """The body as `kind`; raises InvalidRequestError that names the field and never quotes what the client sent."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error.msg} at character {error.pos}.") from None
    if not isinstance(document, dict):
        raise InvalidRequestError("The body must be a JSON object.")
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _first_problem(error) from None


def _first_problem(error: ValidationError) -> InvalidRequestError:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    where = _field(problems[0]["loc"])
    # A union reports every branch that failed; the one that got furthest is the one that was meant.
    same = [p for p in problems if _field(p["loc"]).startswith(where)]
    problem = max(same, key=lambda p: len(p["loc"]))
    where = _field(problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    return InvalidRequestError(f"{where or 'body'}: {message[:1].lower()}{message[1:]}.", param=where or None)


def _field(location: tuple[int | str, ...]) -> str:
    """Dotted; without the names of types that pydantic puts in for the branches of a union."""
    parts = [str(p) for p in location if isinstance(p, int) or p.isdigit() or (p.isidentifier() and p.islower())]
    return ".".join(part for part in parts if part not in {"str", "int"})
