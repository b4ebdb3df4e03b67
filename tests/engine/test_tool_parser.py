"""Tool calls out of text, cut anywhere."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tidewheel.engine.tool_parser import ToolParser
from tidewheel.engine.tools import HERMES, LLAMA3, ToolFormat


@dataclass
class Read:
    content: str = ""
    calls: list[list[str]] = field(default_factory=list)  # name, arguments


def read(tool_format: ToolFormat, pieces: list[str]) -> Read:
    parser, found = ToolParser(tool_format), Read()
    for content, calls in [*(parser.feed(piece) for piece in pieces), parser.finish()]:
        found.content += content
        for call in calls:
            if call.name is not None:
                assert call.index == len(found.calls)
                found.calls.append([call.name, ""])
            found.calls[call.index][1] += call.arguments
    return found


ONE = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x}]\\" {"}}\n</tool_call>'
ARGUMENTS = '{"a": 1, "b": "x}]\\" {"}'
CASES: dict[str, tuple[ToolFormat, str, str, list[list[str]]]] = {
    "one call": (HERMES, ONE, "", [["add", ARGUMENTS]]),
    "text, then a call": (HERMES, "Let me see. " + ONE, "Let me see. ", [["add", ARGUMENTS]]),
    "two calls": (HERMES, ONE + "\n" + ONE, "", [["add", ARGUMENTS]] * 2),
    "text behind a call": (HERMES, ONE + "\nThere.", "\nThere.", [["add", ARGUMENTS]]),
    "no call": (HERMES, "a < b and <tool_box> too", "a < b and <tool_box> too", []),
    "arguments first": (HERMES, '<tool_call>{"arguments": {}, "name": "f"}</tool_call>', "", [["f", "{}"]]),
    "no arguments": (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [["f", ""]]),
    "arguments as a string": (
        HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [["f", '{"a": 1}']],
    ),
    "not JSON": (HERMES, "<tool_call>nothing</tool_call>", "<tool_call>nothing</tool_call>", []),
    "no name": (HERMES, '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    "cut off before the name": (HERMES, '<tool_call>\n{"na', '<tool_call>\n{"na', []),
    "cut off in the arguments": (HERMES, '<tool_call>{"name": "f", "arguments": {"a": ', "", [["f", '{"a": ']]),
    "cut off in the opening": (HERMES, "so <tool_c", "so <tool_c", []),
    "no closing": (HERMES, '<tool_call>{"name": "f", "arguments": {}} ok', " ok", [["f", "{}"]]),
    "bare call": (LLAMA3, '{"name": "f", "parameters": {"a": [1, 2]}}', "", [["f", '{"a": [1, 2]}']]),
    "bare calls": (
        LLAMA3, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "", [["f", "{}"], ["g", "{}"]],
    ),
    "with its type": (LLAMA3, '{"type": "function", "name": "f", "parameters": {}}', "", [["f", "{}"]]),
    "bare text": (LLAMA3, "It is {fine}.", "It is {fine}.", []),
    "another object": (LLAMA3, '{"answer": 42}', '{"answer": 42}', []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_calls_and_content_are_told_apart_wherever_the_text_is_cut(case: str) -> None:
    tool_format, text, content, calls = CASES[case]
    rng = random.Random(case)
    cuts = [[text], list(text)]
    for _ in range(30):
        at = sorted(rng.choices(range(len(text) + 1), k=rng.randint(1, 6)))
        cuts.append([text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])
    for pieces in cuts:
        found = read(tool_format, pieces)
        assert (found.content.strip("\n"), found.calls) == (content.strip("\n"), calls), pieces


def test_content_is_shown_at_once_and_arguments_as_they_are_written() -> None:
    parser = ToolParser(HERMES)
    assert parser.feed("Well, ")[0] == "Well, "
    assert parser.feed('<tool_call>\n{"name": "f", "argu')[1][0].name == "f"
    assert parser.feed('ments": {"a"')[1][0].arguments == '{"a"'
    assert parser.feed(": 1}}")[1][0].arguments == ": 1}"


def test_random_text_never_breaks_the_parser_and_none_of_it_is_lost() -> None:
    rng = random.Random(7)
    alphabet = ["<tool_call>", "</tool_call>", "{", "}", '"', "name", "arguments", ":", ",", " ", "\\", "[", "x", "1"]
    for _ in range(3000):
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 25)))
        found = read(HERMES, [text])
        if not found.calls:
            assert found.content == text
