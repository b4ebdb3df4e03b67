"""Names that dashboards know, and counts that add up."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.engine.builders import Inbox, ScriptedRunner, make_engine, make_request, make_scheduler, run_until_idle
from tests.engine.serving import MODEL, Client, serving

NAMES = {
    "vllm:cache_config_info", "vllm:corrupted_requests", "vllm:e2e_request_latency_seconds",
    "vllm:generation_tokens", "vllm:gpu_cache_usage_perc", "vllm:inter_token_latency_seconds",
    "vllm:iteration_tokens_total", "vllm:kv_cache_usage_perc", "vllm:num_preemptions", "vllm:num_requests_running",
    "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason", "vllm:prefix_cache_hits",
    "vllm:prefix_cache_queries", "vllm:prompt_tokens", "vllm:prompt_tokens_by_source", "vllm:prompt_tokens_cached",
    "vllm:request_decode_time_seconds", "vllm:request_generation_tokens", "vllm:request_inference_time_seconds",
    "vllm:request_max_num_generation_tokens", "vllm:request_params_max_tokens", "vllm:request_params_n",
    "vllm:request_prefill_kv_computed_tokens", "vllm:request_prefill_time_seconds", "vllm:request_prompt_tokens",
    "vllm:request_queue_time_seconds", "vllm:request_success", "vllm:request_time_per_output_token_seconds",
    "vllm:time_per_output_token_seconds", "vllm:time_to_first_token_seconds",
}  # fmt: skip


async def samples(client: Client) -> dict[str, float]:
    """Sample name (and the label that tells series apart) to value."""
    _, text = await client.get("/metrics")
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            extra = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine", "le")}
            if "le" not in sample.labels:
                found[sample.name + "".join(f"/{v}" for v in extra.values())] = sample.value
            assert sample.labels["model_name"] == MODEL
            assert sample.labels["engine"] == "0"
    return found


async def test_the_names_are_vllm_s() -> None:
    """llm-d-autoscaling#1526: a renamed metric is a broken dashboard."""
    async with serving() as client:
        _, text = await client.get("/metrics")
    assert {family.name for family in text_string_to_metric_families(text)} == NAMES
    assert "vllm:prompt_tokens_total{" in text
    assert "_created" not in text


async def test_counts_add_up_and_the_warm_up_is_not_among_them() -> None:
    """sglang#26608: hits and queries are counters, the ratio is the reader's."""
    async with serving() as client:
        assert (await samples(client))["vllm:generation_tokens_total"] == 0
        for _ in range(2):
            await client.complete([7] * 40, max_tokens=5, ignore_eos=True)
        await client.complete([8] * 10, max_tokens=1)
        found = await samples(client)
    assert found["vllm:prompt_tokens_total"] == 90
    assert found["vllm:prefix_cache_queries_total"] == 90
    assert found["vllm:prefix_cache_hits_total"] == found["vllm:prompt_tokens_cached_total"] == 32
    assert found["vllm:prompt_tokens_by_source_total/local_cache_hit"] == 32
    assert found["vllm:prompt_tokens_by_source_total/local_compute"] == 58
    assert found["vllm:generation_tokens_total"] == 11
    assert found["vllm:request_success_total/length"] == 3
    assert found["vllm:time_to_first_token_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_count"] == 8
    assert found["vllm:request_generation_tokens_sum"] == 11
    assert found["vllm:num_requests_running"] == 0


async def test_a_preempted_request_has_one_time_to_first_token() -> None:
    """vllm#36812 and the like: resuming is no second first token, and prompt tokens are counted once."""
    async with serving(kv_memory=23_040 * 16 * 8, max_model_len=100) as client:
        await asyncio.gather(*(client.complete([9 + i] * 30, max_tokens=60, ignore_eos=True) for i in range(4)))
        found = await samples(client)
    assert found["vllm:num_preemptions_total"] > 0
    assert found["vllm:time_to_first_token_seconds_count"] == 4
    assert found["vllm:prompt_tokens_total"] == 120
    assert found["vllm:generation_tokens_total"] == 240


async def test_several_choices_count_the_tokens_of_each() -> None:
    """vllm#56923: `prompt_tokens` here is what was processed, once per choice; usage counts the prompt once."""
    async with serving() as client:
        _, document = await client.complete([9] * 10, n=4, max_tokens=2)
        found = await samples(client)
    assert document["usage"]["prompt_tokens"] == 10
    assert found["vllm:prompt_tokens_total"] == 40
    assert found["vllm:request_params_n_sum"] == 4


async def test_failures_and_aborts_have_their_reason() -> None:
    def choose(request: Any) -> int | None:
        return None if request.label == "bad" else 50

    runner = ScriptedRunner(num_blocks=256, block_size=16, vocab_size=500, choose=choose)
    async with serving(runner=runner) as client:
        await client.post("/v1/completions", {"model": MODEL, "prompt": "x"}, **{"X-Request-Id": "bad"})
        found = await samples(client)
    assert found["vllm:request_success_total/error"] == 1
    assert found["vllm:request_success_total/abort"] == 0


def test_outputs_say_when_they_were_made() -> None:
    engine = make_engine(make_scheduler(), clock=iter(range(1000)).__next__)
    request = make_request(4, max_tokens=3)
    engine.submit(request)
    run_until_idle(engine)
    assert isinstance(request.deliver, Inbox)
    times = [output.at for output in request.deliver.outputs]
    assert times == sorted(times)
    assert request.first_token_at == times[0]
    assert request.last_token_at == times[-1]
    assert [output.gap for output in request.deliver.outputs] == [None, times[1] - times[0], times[2] - times[1]]
