"""Prometheus metrics under vLLM's names, so that dashboards and inference gateways find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase

from tidewheel.engine.request import FinishReason, Output, Request
from tidewheel.engine.scheduler import Scheduler, Step

_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
# vLLM's edges begin at 10 ms; small models on fast machines need finer ones.
_PER_TOKEN = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_DURATION = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_CHOICES = (1, 2, 5, 10, 20)

_Metric = TypeVar("_Metric", bound=MetricWrapperBase)


class Metrics:
    def __init__(self, *, model_name: str, scheduler: Scheduler) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._num_preemptions = 0
        self._make_gauges(scheduler)
        self._make_counters()
        self._make_histograms()

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def on_submit(self, *, max_tokens: int | None, num_choices: int) -> None:
        self._num_choices.observe(num_choices)
        if max_tokens is not None:
            self._params_max_tokens.observe(max_tokens)

    def on_step(self, step: Step, scheduler: Scheduler) -> None:
        self._step_tokens.observe(step.num_tokens)
        if scheduler.num_preemptions > self._num_preemptions:
            self._preemptions.inc(scheduler.num_preemptions - self._num_preemptions)
            self._num_preemptions = scheduler.num_preemptions

    def on_outputs(self, outputs: Sequence[Output]) -> None:
        num_tokens = 0
        for output in outputs:
            request = output.request
            if request.is_warm_up:
                continue
            if output.token_id is not None:
                num_tokens += 1
                # The request itself may be further by now: the loop does not wait for its metrics.
                if output.gap is not None:
                    self._token_gap.observe(output.gap)
                else:
                    self._on_first_token(request, output.at)
            if output.error is not None and output.error.code == "logits_not_finite":
                self._corrupted.inc()
            if output.finish_reason is not None:
                self._on_finish(request, output.finish_reason, output.at)
        self._generation_tokens.inc(num_tokens)

    def _on_first_token(self, request: Request, at: float) -> None:
        self._ttft.observe(at - request.arrived_at)
        self._prefix_queries.inc(request.num_prompt)
        self._prefix_hits.inc(request.num_cached)
        self._prompt_tokens.inc(request.num_prompt)
        self._prompt_cached.inc(request.num_cached)
        self._by_source["local_cache_hit"].inc(request.num_cached)
        self._by_source["local_compute"].inc(request.num_prompt - request.num_cached)

    def _on_finish(self, request: Request, reason: FinishReason, at: float) -> None:
        self._finished[reason].inc()
        self._e2e.observe(at - request.arrived_at)
        self._request_prompt.observe(request.num_prompt)
        self._request_generation.observe(request.num_output)
        self._max_generation.observe(request.num_output)
        self._prefill_computed.observe(request.num_prompt - request.num_cached)
        if request.scheduled_at is None:
            return
        self._queue.observe(request.scheduled_at - request.arrived_at)
        self._inference.observe(at - request.scheduled_at)
        if request.first_token_at is None or request.last_token_at is None:
            return
        self._prefill.observe(request.first_token_at - request.scheduled_at)
        decode = request.last_token_at - request.first_token_at
        self._decode.observe(decode)
        per_token = decode / (request.num_output - 1) if request.num_output > 1 else 0.0
        self._per_token.observe(per_token)
        self._per_token_alias.observe(per_token)

    def _make_gauges(self, scheduler: Scheduler) -> None:
        pool = scheduler.pool

        def usage() -> float:
            return 1 - pool.num_free / pool.num_blocks

        self._gauge("num_requests_running", "Requests that hold KV blocks.", lambda: len(scheduler.running))
        self._gauge("num_requests_waiting", "Requests in the lanes.", lambda: len(scheduler.waiting))
        waiting = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Why they wait.",
            [*self._labels, "reason"],
            registry=self._registry,
        )
        deferred = waiting.labels(**self._labels, reason="deferred")
        deferred.set_function(lambda: scheduler.num_deferred)
        capacity = waiting.labels(**self._labels, reason="capacity")
        capacity.set_function(lambda: max(0, len(scheduler.waiting) - scheduler.num_deferred))
        self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", usage)
        self._gauge("gpu_cache_usage_perc", "Old name of kv_cache_usage_perc.", usage)
        info = Gauge(
            "vllm:cache_config_info",
            "The KV pool's shape.",
            [*self._labels, "block_size", "num_gpu_blocks"],
            registry=self._registry,
        )
        info.labels(**self._labels, block_size=str(pool.block_size), num_gpu_blocks=str(pool.num_blocks)).set(1)

    def _make_counters(self) -> None:
        self._prefix_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up, once, at admission.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Prompt tokens found.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that began to answer.")
        self._prompt_cached = self._counter("prompt_tokens_cached", "Those found in the cache.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens written.")
        self._preemptions = self._counter("num_preemptions", "Requests put back for want of KV blocks.")
        self._corrupted = self._counter("corrupted_requests", "Requests that failed on logits that are not numbers.")
        by_source = Counter(
            "vllm:prompt_tokens_by_source",
            "Where prompt KV came from.",
            [*self._labels, "source"],
            registry=self._registry,
        )
        sources = ("local_compute", "local_cache_hit")
        self._by_source = {source: by_source.labels(**self._labels, source=source) for source in sources}
        finished = Counter(
            "vllm:request_success",
            "Requests ended, by reason.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )
        names = {FinishReason.ABORTED: "abort", FinishReason.FAILED: "error"}
        self._finished = {
            reason: finished.labels(**self._labels, finished_reason=names.get(reason, reason))
            for reason in FinishReason
        }

    def _make_histograms(self) -> None:
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival.", _TTFT)
        self._token_gap = self._histogram("inter_token_latency_seconds", "Between two tokens.", _PER_TOKEN)
        self._per_token = self._histogram("request_time_per_output_token_seconds", "Mean per request.", _PER_TOKEN)
        self._per_token_alias = self._histogram("time_per_output_token_seconds", "Old name of the above.", _PER_TOKEN)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to end.", _DURATION)
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to first scheduled.", _DURATION)
        self._prefill = self._histogram("request_prefill_time_seconds", "First scheduled to first token.", _DURATION)
        self._decode = self._histogram("request_decode_time_seconds", "First to last token.", _DURATION)
        self._inference = self._histogram("request_inference_time_seconds", "First scheduled to end.", _DURATION)
        self._step_tokens = self._histogram("iteration_tokens_total", "Tokens computed per step.", _STEP_TOKENS)
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt length.", _TOKENS)
        self._request_generation = self._histogram("request_generation_tokens", "Tokens written.", _TOKENS)
        self._max_generation = self._histogram("request_max_num_generation_tokens", "Longest choice.", _TOKENS)
        self._prefill_computed = self._histogram("request_prefill_kv_computed_tokens", "Not cached.", _TOKENS)
        self._params_max_tokens = self._histogram("request_params_max_tokens", "max_tokens asked for.", _TOKENS)
        self._num_choices = self._histogram("request_params_n", "n asked for.", _CHOICES)

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._bind(Gauge(f"vllm:{name}", text, list(self._labels), registry=self._registry)).set_function(read)

    def _counter(self, name: str, text: str) -> Counter:
        return self._bind(Counter(f"vllm:{name}", text, list(self._labels), registry=self._registry))

    def _histogram(self, name: str, text: str, edges: Sequence[float]) -> Histogram:
        labels = list(self._labels)
        return self._bind(Histogram(f"vllm:{name}", text, labels, registry=self._registry, buckets=edges))

    def _bind(self, metric: _Metric) -> _Metric:
        return metric.labels(**self._labels)
