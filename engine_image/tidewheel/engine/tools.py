"""Tool calls: what a request may offer, how a family of models writes a call, and the grammar that forces one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tidewheel.engine.errors import InvalidRequestError
from tidewheel.engine.structured import Grammar

MAX_TOOLS = 128
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class Function(_Strict):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Strict):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


class NamedFunction(_Strict):
    name: FunctionName


class NamedTool(_Strict):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family writes a call."""

    name: str
    opening: str  # "": the reply is the call, or there is none
    closing: str
    arguments_key: str

    def grammar(self, tools: list[Tool], *, several: bool, param: str) -> Grammar:
        """A reply that is one call, or several, and nothing else."""
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    self.arguments_key: tool.function.parameters or {"type": "object"},
                },
                "required": ["name", self.arguments_key],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        call = "%json " + json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls})
        opening, closing = (f"{json.dumps(text)} " if text else "" for text in (self.opening, self.closing))
        one = f"{opening}call {closing}".strip()
        repeated = 'one ("\\n" one)*' if several and self.opening else "one"
        return Grammar("lark", f"start: {repeated}\none: {one}\ncall: {call}", param)


HERMES = ToolFormat("hermes", "<tool_call>\n", "\n</tool_call>", "arguments")
LLAMA3 = ToolFormat("llama3", "", "", "parameters")


def tool_format(chat_template: str | None) -> ToolFormat | None:
    """The family, by what its own template tells the model to write; None if it knows no tools, or another way."""
    if chat_template is None or not re.search(r"\btools\b", chat_template):
        return None
    if "<tool_call>" in chat_template:
        return HERMES
    if '"parameters"' in chat_template and ("ipython" in chat_template or "python_tag" in chat_template):
        return LLAMA3
    return None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request with tools comes to. `grammar` is set where a call must be made."""

    format: ToolFormat
    tools: list[Tool]
    grammar: Grammar | None

    def for_template(self) -> list[dict[str, Any]]:
        return [tool.for_template() for tool in self.tools]


def tool_use(
    tools: list[Tool], choice: ToolChoice | None, *, parallel: bool, chat_template: str | None
) -> ToolUse | None:
    """None where no tool may be called. Raises InvalidRequestError for what this model cannot do."""
    if not tools:
        if choice not in (None, "none"):
            raise InvalidRequestError("tool_choice needs tools to choose from.", param="tool_choice")
        return None
    if choice == "none":
        return None
    known = tool_format(chat_template)
    if known is None:
        message = "tools: this model's chat template does not say how it writes tool calls (hermes or llama3 style)."
        raise InvalidRequestError(message, param="tools", code="tools_not_supported")
    if isinstance(choice, NamedTool):
        named = [tool for tool in tools if tool.function.name == choice.function.name]
        if not named:
            param = "tool_choice.function.name"
            raise InvalidRequestError(f"{param} is not among tools.", param=param)
        return ToolUse(known, tools, known.grammar(named[:1], several=False, param="tools"))
    grammar = known.grammar(tools, several=parallel, param="tools") if choice == "required" else None
    return ToolUse(known, tools, grammar)
