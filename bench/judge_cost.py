"""What judging costs: processor time and queries per rollout and minute, the ledger's size, a hundred rollouts at once.

Two parts, apart. *judge*: from readings to verdicts, the readings drawn. *reader*: from Prometheus' answers, as bytes,
to a reading: parsed as the operator's client does, two gateways, both latency histograms. The network and Prometheus
itself are in `python -m bench.small_platform` (metric `query`).
"""

import argparse
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
import orjson
from bench.report import Report
from bench.rollout.traffic import SMALL_PLATFORM, Traffic

from tidewheel.clients.prometheus import Answer, Sample
from tidewheel.operator.rollouts.queries import Arms, Series, queries
from tidewheel.operator.rollouts.reading import Look, read
from tidewheel.rollout.judge.readings import Reading
from tidewheel.rollout.judge.session import StepSession
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.judge.steps import StepContext
from tidewheel.rollout.ledger.codec import to_compressed_text, to_json_text
from tidewheel.rollout.ledger.records import Ledger

SETTINGS: Final = JudgeSettings()
SLO: Final = {kind: shape.slo for kind, shape in SMALL_PLATFORM.items()}


def readings(blocks: int) -> list[Reading]:
    """A step at 1 % of 1,000 requests a second."""
    traffic = Traffic(np.random.default_rng(1), rate=1000, replicas=150)
    traffic.advance(300, 0.0)
    found = []
    for block in range(blocks + 1):
        traffic.advance(SETTINGS.block_seconds, 0.01)
        found.append(traffic.reading(1000.0 + block * SETTINGS.block_seconds))
    return found


def session(number: int) -> StepSession:
    """A session of its own, as every rollout has one."""
    step = StepContext(
        rollout_id=f"r{number}",
        step=0,
        judged_steps=4,
        canary_share=0.01,
        confirmed_at=900.0,
        rollout_started_at=0.0,
        slo=SLO,
    )
    return StepSession(SETTINGS, step)


ARMS: Final = Arms(namespace="shop", model="chat", base="v42", canary="v43")
GATEWAYS: Final = {"gateway-0": "10.0.0.1", "gateway-1": "10.0.0.2"}
_BUCKETS: Final = {Series.TPOT: 153, Series.TTFT: 195, Series.PROMPT_TOKENS: 19}


def answers() -> Mapping[Series, bytes]:
    """What Prometheus sends for one look."""
    found = {}
    for series in queries(ARMS):
        edges = [{"le": str(0.001 * 1.0627**edge)} for edge in range(_BUCKETS.get(series, 0) - 1)]
        more: list[dict[str, str]] = [*edges, {"le": "+Inf"}] if edges else [{}]
        if series is Series.OVER_SLO:
            more = [{"metric": "tpot"}, {"metric": "ttft"}]
        result = [
            {
                "metric": {"version": version, "pod": pod, "instance": f"{address}:9090", **labels},
                "value": [1e9, "1000"],
            }
            for version in (ARMS.base, ARMS.canary)
            for pod, address in GATEWAYS.items()
            for labels in more
        ]
        found[series] = orjson.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
    return found


def read_answers(bodies: Mapping[Series, bytes]) -> Reading:
    """As the operator does it."""
    parsed = {}
    for series, body in bodies.items():
        items = orjson.loads(body)["data"]["result"]
        parsed[series] = Answer(samples=tuple(Sample(item["metric"], float(item["value"][1])) for item in items))
    return read(Look(at=1e9, arms=ARMS, answers=parsed, gateways=GATEWAYS, ready={"v42": 2, "v43": 1}))


def measure_reader(report: Report, *, looks: int) -> None:
    """One rollout asks at the end of each block."""
    bodies = answers()
    began = time.process_time()
    for _ in range(looks):
        read_answers(bodies)
    spent = (time.process_time() - began) / looks
    per_minute = 60 / SETTINGS.block_seconds
    report.measure("reader", "queries_per_rollout_minute", len(bodies) * per_minute, "count")
    report.measure("reader", "bytes_per_rollout_minute", sum(map(len, bodies.values())) * per_minute / 1000, "kB")
    report.measure("reader", "cpu_per_rollout_minute", 1000 * spent * per_minute, "ms")
    report.measure("reader, 100 rollouts", "queries_per_second", 100 * len(bodies) / SETTINGS.block_seconds, "1/s")
    report.measure("reader, 100 rollouts", "cpu_share_of_a_core", 100 * 100 * spent / SETTINGS.block_seconds, "%")


def main() -> None:
    """Print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="ten blocks instead of sixty")
    arguments = parser.parse_args()
    blocks = 10 if arguments.short else 60
    report = Report("judge_cost")
    measure_reader(report, looks=10 if arguments.short else 100)
    drawn = readings(blocks)
    for rollouts in (1, 100):
        sessions = [session(number) for number in range(rollouts)]
        began = time.process_time()
        for reading in drawn:
            for judge in sessions:
                judge.observe(reading)
        spent = time.process_time() - began
        minutes = blocks * SETTINGS.block_seconds / 60
        case = f"{rollouts} rollout(s)"
        report.measure(case, "cpu_per_rollout_minute", 1000 * spent / rollouts / minutes, "ms")
        report.measure(case, "cpu_share_of_a_core", 100 * spent / (minutes * 60), "%")
    judge, ledger = session(0), Ledger()
    for reading in drawn:
        verdict = judge.observe(reading)
        if verdict is not None and judge.layout is not None:
            ledger = ledger.with_look(
                context=judge.step, settings=SETTINGS, layout=judge.layout, verdict=verdict, block=judge.last_block
            )
    report.measure(f"ledger of {blocks} looks", "json", len(to_json_text(ledger)) / 1000, "kB")
    report.measure(f"ledger of {blocks} looks", "compressed", len(to_compressed_text(ledger)) / 1000, "kB")


if __name__ == "__main__":
    main()
