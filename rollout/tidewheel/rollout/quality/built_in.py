"""The prompts that are asked where a rule names no set of its own.

Enough to see a broken tokenizer, chat template or quantisation; no measure of what a model can do.
"""

from collections.abc import Mapping
from typing import Any, Final

from tidewheel.rollout.quality.prompts import Prompt

_QUESTIONS: Final = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three primary colours, separated by commas.",
    "Translate 'good morning' into Spanish.",
    "What is 17 + 25? Answer with the number only.",
    "Explain in two sentences why the sky is blue.",
    "Give a synonym for 'quick'.",
    "Continue: Once upon a time, in a small village by the river,",
    "Write a Python function that returns the square of a number.",
    "Summarise in one sentence: The meeting moved from Monday to Wednesday because the room was taken.",
    "Is water wet? Answer yes or no.",
    "Name the months that have 30 days.",
    "Who wrote Romeo and Juliet?",
    "Turn this into a question: The train leaves at noon.",
    "What comes next: 2, 4, 8, 16?",
    "Give a short recipe for pancakes in three steps.",
)
_PEOPLE: Final = (
    "Ada is 36 years old.",
    "My neighbour Bob turned 52 last week.",
    "Chen, aged 7, likes trains.",
    "Dana celebrates her 41st birthday.",
)
_PERSON: Final = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}


def _ask(name: str, text: str, schema: Mapping[str, Any] | None = None) -> Prompt:
    return Prompt(name=name, messages=({"role": "user", "content": text},), schema=schema)


BUILT_IN: Final = (
    *(_ask(f"question-{number}", text) for number, text in enumerate(_QUESTIONS, start=1)),
    *(
        _ask(
            f"person-{number}", f'Answer with JSON such as {{"name": "Eve", "age": 30}}, nothing else. {text}', _PERSON
        )
        for number, text in enumerate(_PEOPLE, start=1)
    ),
)
