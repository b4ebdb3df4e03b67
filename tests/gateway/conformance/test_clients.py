"""Unmodified clients against the real engine through the real gateway: openai for Python and for Node, and curl."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.gateway.conformance.node_packages import openai_for_node
from tests.gateway.conformance.served import TOOL_CALL, Served, serving
from tests.gateway.sse_events import event_payloads

pytestmark = [pytest.mark.component, pytest.mark.timeout(900)]

MESSAGES: Any = [{"role": "user", "content": "Why is the sky blue?"}]
ASKED: Any = {"model": "chat", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One engine and one gateway for all clients."""
    with serving(tmp_path_factory.mktemp("conformance")) as everything:
        yield everything


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-client", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def whole(client: openai.OpenAI) -> Any:
    """What the model says, which every client must see."""
    return client.chat.completions.create(**ASKED)


def test_python_streams_what_it_gets_whole_and_usage_with_it(client: openai.OpenAI, whole: Any) -> None:
    chunks: list[Any] = list(
        client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    usage = chunks[-1].usage  # what of the prompt was cached differs
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert whole.usage.completion_tokens == 12
    assert [model.id for model in client.models.list()] == ["chat", "flaky-node", "flaky-python", "tools"]
    completion = client.completions.create(model="chat", prompt="Once upon a", max_tokens=4, temperature=0)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 4


def test_python_stops_where_it_asks_to(client: openai.OpenAI, whole: Any) -> None:
    text = whole.choices[0].message.content
    stop = text.split()[2]
    stopped = client.chat.completions.create(**ASKED, stop=[stop]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == text[: text.index(stop)]


def test_python_gets_typed_errors_once(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**{**ASKED, "max_tokens": -1})
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**{**ASKED, "model": "none"})
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:  # SmolLM2's template knows no tools: the engine's own answer
        client.chat.completions.create(**ASKED, tools=TOOLS)
    assert (refused.value.param, refused.value.code) == ("tools", "tools_not_supported")


def test_python_gets_a_call_of_a_tool_as_the_engine_streams_it(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tools", messages=MESSAGES, tools=TOOLS) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls is not None
    assert {"name": calls[0].function.name, "arguments": calls[0].function.arguments} == TOOL_CALL


def test_python_retries_what_may_be_retried(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-client", max_retries=2) as patient:
        answer = patient.chat.completions.create(model="flaky-python", messages=MESSAGES)
    assert answer.choices[0].message.content == "after 2 calls"
    assert served.calls.count("flaky-python") == 2


def test_python_that_aborts_frees_the_engine(served: Served, client: openai.OpenAI) -> None:
    more = {**ASKED, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    with client.chat.completions.create(**more, stream=True) as stream:
        for _ in range(3):
            next(stream)
    served.wait_until_idle()


def test_python_gets_responses(client: openai.OpenAI, whole: Any) -> None:
    asked: Any = {"model": "chat", "input": MESSAGES[0]["content"], "max_output_tokens": 12, "temperature": 0}
    response = client.responses.create(**asked)
    assert response.output_text == whole.choices[0].message.content
    assert response.usage is not None
    assert response.usage.output_tokens == 12
    ends: Any = {**asked, "input": "What is the capital of France?", "max_output_tokens": 60}
    with client.responses.stream(**ends) as stream:  # the SDK's helper takes only complete ones
        for _ in stream:
            pass
        assert "Paris" in stream.get_final_response().output_text
    accepted = client.responses.create(**asked, background=True)
    events = list(client.responses.retrieve(accepted.id, stream=True))
    resumed = list(client.responses.retrieve(accepted.id, stream=True, starting_after=3))
    assert resumed == events[4:]


def test_node_gets_what_python_gets(served: Served, whole: Any) -> None:
    script = Path(__file__).with_name("openai_clients.mjs")
    command = ["node", str(script), f"{served.url}/v1", str(openai_for_node())]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    text = whole.choices[0].message.content
    assert found["text"] == found["streamed"] == found["response"]["text"] == text
    for usage in (found["usage"], found["streamedUsage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (whole.usage.prompt_tokens, 12)
    assert found["stopped"]["text"] == text[: text.index(found["stopped"]["stop"])]
    assert found["stopped"]["reason"] == "stop"
    assert (found["badRequest"]["kind"], found["badRequest"]["param"]) == ("BadRequestError", "max_tokens")
    assert (found["unknownModel"]["kind"], found["unknownModel"]["code"]) == ("NotFoundError", "model_not_found")
    assert found["toolsRefused"]["code"] == "tools_not_supported"
    assert {name: found["toolCall"][name] for name in TOOL_CALL} == TOOL_CALL
    assert found["retried"] == "after 2 calls"
    assert found["aborted"] == 3
    served.wait_until_idle()
    assert found["events"] == list(range(len(found["events"])))
    assert found["resumed"] is True


def curl(served: Served, body: dict[str, Any], *arguments: str, path: str = "/v1/chat/completions") -> bytes:
    command = ["curl", "-sS", "-N", "--max-time", "240", *arguments, "-d", json.dumps(body), served.url + path]
    return subprocess.run([*command, "-H", "content-type: application/json"], capture_output=True, check=True).stdout


def test_curl_gets_the_stream_the_error_and_leaves_when_it_likes(served: Served, whole: Any) -> None:
    body = curl(served, {**ASKED, "stream": True})
    chunks = [json.loads(data) for data in event_payloads(body) if data != b"[DONE]"]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == whole.choices[0].message.content
    assert body.endswith(b"data: [DONE]\n\n")
    *answer, status = curl(served, {**ASKED, "max_tokens": -1}, "-w", "\n%{http_code}").splitlines()
    assert status == b"400"
    assert json.loads(b"".join(answer))["error"]["param"] == "max_tokens"
    endless = json.dumps({**ASKED, "stream": True, "max_tokens": 1500, "ignore_eos": True})
    with subprocess.Popen(
        ["curl", "-sS", "-N", "-d", endless, f"{served.url}/v1/chat/completions"], stdout=subprocess.PIPE
    ) as leaving:
        assert leaving.stdout is not None
        assert leaving.stdout.readline()
        leaving.kill()
    served.wait_until_idle()
