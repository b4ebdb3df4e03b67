"""The fields that ask for structured output, as OpenAI and vLLM spell them, and the one grammar they come to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from tidewheel.engine.errors import InvalidRequestError
from tidewheel.engine.structured import Grammar, choice_grammar

MAX_CHOICES_LISTED = 1024

JsonSchema = dict[str, Any] | str
ChoiceTexts = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES_LISTED)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class NamedSchema(_Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(_Strict):
    """vLLM's name for what used to be guided_*."""

    json_: Annotated[JsonSchema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: ChoiceTexts | None = None
    grammar: str | None = None


class StructureFields(_Strict):
    """At most one of these may ask for something."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | None = None
    guided_regex: str | None = None
    guided_choice: ChoiceTexts | None = None
    guided_grammar: str | None = None

    def grammar(self) -> Grammar | None:
        """Raises InvalidRequestError where two fields contradict each other."""
        asked = [*self._from_format(), *self._from_outputs("structured_outputs."), *self._from_guided()]
        if len(asked) > 1:
            names = " and ".join(grammar.param for grammar in asked[:2])
            raise InvalidRequestError(f"{names} both ask for a structure; send one.", param=asked[1].param)
        return asked[0] if asked else None

    def _from_format(self) -> list[Grammar]:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return []
        if wanted.type == "json_object":
            return [_any_object("response_format")]
        if wanted.json_schema is None:
            param = "response_format.json_schema"
            raise InvalidRequestError(f"{param} must hold the schema when type is json_schema.", param=param)
        schema = wanted.json_schema.schema_
        param = "response_format.json_schema.schema"
        return [_any_object(param) if schema is None else _json(schema, param)]

    def _from_outputs(self, prefix: str) -> list[Grammar]:
        wanted = self.structured_outputs
        if wanted is None:
            return []
        found = _grammars(prefix, wanted.json_, wanted.regex, wanted.choice, wanted.grammar)
        return [*found, _any_object(f"{prefix}json_object")] if wanted.json_object else found

    def _from_guided(self) -> list[Grammar]:
        return _grammars("guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)


def _grammars(
    prefix: str, json: JsonSchema | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> list[Grammar]:
    found = []
    if json is not None:
        found.append(_json(json, f"{prefix}json"))
    if regex is not None:
        found.append(Grammar("regex", regex, f"{prefix}regex"))
    if choice is not None:
        found.append(choice_grammar(choice, param=f"{prefix}choice"))
    if grammar is not None:
        found.append(Grammar("lark", grammar, f"{prefix}grammar"))
    return found


def _any_object(param: str) -> Grammar:
    return Grammar("json", '{"type":"object"}', param)


def _json(schema: JsonSchema, param: str) -> Grammar:
    if isinstance(schema, str):
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError:
            raise InvalidRequestError(f"{param} is not valid JSON.", param=param, code="invalid_grammar") from None
        if not isinstance(schema, dict):
            raise InvalidRequestError(f"{param} must be a JSON schema, an object.", param=param, code="invalid_grammar")
    return Grammar("json", orjson.dumps(schema, option=orjson.OPT_SORT_KEYS).decode(), param)
