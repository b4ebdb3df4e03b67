"""Shadow prompts: what is told of answers, and when it holds or rolls back."""

import json

import pytest

from tidewheel.crds.rolloutchoices import OnBreach
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.quality.artefact import artefact
from tidewheel.rollout.quality.built_in import BUILT_IN
from tidewheel.rollout.quality.prompts import Prompt, Reply, Shadow, prompts_from_lines
from tidewheel.rollout.quality.scoring import QualityKind, QualitySettings, paired_p_value, score
from tidewheel.rollout.quality.traits import agreement, has_shape, is_loop, is_refusal

PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
GOOD = "Paris is the capital of France, on the river Seine."
LOOP = "it is so good " * 8


def asked(pairs: list[tuple[str, str]], *, schema: dict[str, object] | None = None) -> list[Shadow]:
    """Base's and the canary's answers; ``!`` at the beginning is an error."""
    return [
        Shadow(
            prompt=Prompt(name=f"p{number}", messages=({"role": "user", "content": "?"},), schema=schema),
            base=reply(base),
            canary=reply(canary),
        )
        for number, (base, canary) in enumerate(pairs)
    ]


def reply(text: str) -> Reply:
    return Reply(error=text[1:]) if text.startswith("!") else Reply(text=text, finish_reason="stop")


@pytest.mark.parametrize(
    ("canary", "count", "kind", "words"),
    [
        pytest.param(GOOD, 20, QualityKind.CLEAR, "no trait of the answers", id="the same"),
        pytest.param(
            "I'm sorry, but I can't help with that.", 5, QualityKind.BREACH, "refusals canary 5/20", id="refuses"
        ),
        pytest.param("", 6, QualityKind.BREACH, "refusals canary 6/20", id="says nothing"),
        pytest.param(LOOP, 5, QualityKind.BREACH, "loops canary 5/20", id="loops"),
        pytest.param("!503 from the engine", 5, QualityKind.BREACH, "errors canary 5/20", id="fails"),
        pytest.param("I'm sorry, I can't.", 2, QualityKind.SUSPECT, "perhaps by chance", id="two refusals of twenty"),
        pytest.param(
            GOOD + " And more of it follows here." * 3, 20, QualityKind.BREACH, "as long as base's", id="rambles"
        ),
    ],
)
def test_a_verdict_follows_from_the_answers(canary: str, count: int, kind: QualityKind, words: str) -> None:
    """``count`` of 20 answers are the canary's own, the others as base's."""
    pairs = [(GOOD, canary if number < count else GOOD) for number in range(20)]
    verdict = score(asked(pairs), QualitySettings())
    assert verdict.kind is kind
    assert words in verdict.message


def test_refusals_that_base_has_too_are_no_finding() -> None:
    pairs = [("I'm sorry, no.", "I'm sorry, no.")] * 10 + [(GOOD, GOOD)] * 10
    assert score(asked(pairs), QualitySettings()).kind is QualityKind.CLEAR


def test_wrong_shapes_are_told_of_prompts_that_ask_for_one() -> None:
    right, wrong = '{"name": "Ada", "age": 36}', "Ada is 36."
    verdict = score(asked([(right, wrong)] * 6, schema=PERSON), QualitySettings(max_length_ratio=9))
    assert verdict.kind is QualityKind.BREACH
    assert "wrong-shape canary 6/6, base 0/6" in verdict.message


def test_agreement_is_recorded_and_acts_only_where_a_limit_is_set() -> None:
    pairs = [(GOOD, "The French capital happens to be Paris, one may say.")] * 20
    lenient, strict = QualitySettings(), QualitySettings(min_agreement=0.9)
    free = score(asked(pairs), lenient)
    assert free.kind is QualityKind.CLEAR
    assert any("agreement with base" in finding.words for finding in free.findings)
    assert score(asked(pairs), strict).kind is QualityKind.BREACH


def test_without_answers_of_base_nothing_is_told() -> None:
    verdict = score(asked([("!timeout", GOOD)] * 10 + [(GOOD, GOOD)] * 5), QualitySettings())
    assert verdict.kind is QualityKind.BLIND
    assert "base answered 5 of 15 shadow prompts: timeout" in verdict.message
    assert score([], QualitySettings()).kind is QualityKind.BLIND


@pytest.mark.parametrize(
    ("worse", "better", "chance"), [(0, 0, 1.0), (5, 0, 1 / 32), (3, 0, 1 / 8), (4, 1, 6 / 32), (10, 10, 0.588)]
)
def test_the_paired_test_is_exact(worse: int, better: int, chance: float) -> None:
    assert paired_p_value(worse, better) == pytest.approx(chance, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "refusal", "loop"),
    [
        ("I'm sorry, but I cannot assist with that request.", True, False),
        ("As an AI language model, I have no opinion.", True, False),
        ("  \n", True, False),
        ("Sorry is what one says.", False, False),
        ("yes yes yes yes yes yes yes yes yes yes yes yes", False, True),
        ("1, 2, 3. " + "go on " * 7, False, True),
        ("ha ha ha", False, False),
        ("one two three four five six seven eight nine ten eleven twelve thirteen", False, False),
    ],
)
def test_refusals_and_loops(text: str, refusal: bool, loop: bool) -> None:
    assert (is_refusal(text), is_loop(text)) == (refusal, loop)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"name": "Ada", "age": 36}', True),
        ('```json\n{"name": "Ada", "age": 36, "tags": ["x"]}\n```', True),
        ('{"name": "Ada"}', False),
        ('{"name": "Ada", "age": "36"}', False),
        ('{"name": "Ada", "age": true}', False),
        ('{"name": "Ada", "age": 36, "tags": [1]}', False),
        ("Ada is 36", False),
        ("[]", False),
    ],
)
def test_shapes(text: str, fits: bool) -> None:
    assert has_shape(text, PERSON) is fits


def test_agreement_is_1_for_the_same_and_less_for_the_less_alike() -> None:
    assert agreement(GOOD, GOOD) == 1.0
    assert agreement(GOOD, GOOD + " More.") > agreement(GOOD, "Rome is the capital of Italy.") > agreement(GOOD, "no")
    assert agreement("", "") == 1.0


def test_the_artefact_shows_the_worst_first_and_stays_small() -> None:
    pairs = [(GOOD * 200, GOOD * 200)] * 30 + [(GOOD, LOOP)] * 6
    shadows = asked(pairs)
    verdict = score(shadows, QualitySettings())
    text = artefact(verdict, shadows, most_bytes=50_000)
    assert len(text.encode()) <= 50_000
    document = json.loads(text)
    assert document["prompts"][0]["canary"].startswith("it is so good")
    assert document["verdict"] == "BREACH"
    assert json.loads(artefact(verdict, shadows, most_bytes=900))["prompts"] != document["prompts"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "is empty"),
        ("{", "line 1 of the prompt set is no JSON"),
        ('{"name": "a"}', "say either prompt or messages"),
        ('{"prompt": "?", "promt": 1}', "promt"),
        ('{"name": "a", "prompt": "?"}\n{"name": "a", "prompt": "!"}', "twice: a"),
        ('{"messages": [{"role": "user"}]}', "a role and a content"),
        ("\n".join(f'{{"prompt": "{number}"}}' for number in range(201)), "at most 200"),
    ],
)
def test_a_prompt_set_that_cannot_be_used_says_why(lines: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        prompts_from_lines(lines)


def test_a_prompt_set_is_read() -> None:
    (first, second) = prompts_from_lines(
        '{"prompt": "Hi"}\n\n{"name": "b", "messages": [{"role": "user", "content": "x"}]}'
    )
    assert (first.name, first.messages[0]["content"], second.name) == ("line-1", "Hi", "b")
    assert len({prompt.name for prompt in BUILT_IN}) == len(BUILT_IN) >= 16


def test_settings_that_cannot_be_obeyed_say_so() -> None:
    assert QualitySettings().on_breach is OnBreach.HOLD
    with pytest.raises(SettingsError, match="above 1"):
        QualitySettings(max_length_ratio=0.9)
