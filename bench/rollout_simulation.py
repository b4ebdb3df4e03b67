"""Rollouts by the thousand on drawn traffic, with the judge and the step machine as they run in the operator.

    faults    what is wrong with the canary of DESIGN's small platform (1,000 requests/s on 150 GPUs, v42 at 22 ms p99
              TPOT, SLO 30 ms), and at 50 requests/s: how often it is rolled back, when, and how many requests met it
    aa        healthy versions under four kinds of noise: how often they are rolled back all the same, and how long
              they take, in `evidence` and in `limits`
    power     slowdowns and error rates at 10 to 1,000 requests/s: how often they are caught before 100 %, and when

Everything is seeded; the same arguments give the same figures.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.report import Report, quantile
from bench.rollout.archive import Archive
from bench.rollout.compiled import compile_evidence
from bench.rollout.traffic import Fault, Noise
from bench.rollout.trials import Result, Trial

from tidewheel.crds.rolloutchoices import Mode
from tidewheel.rollout.judge.settings import JudgeSettings

SMALL_PLATFORM: Final = {"rate": 1000.0, "replicas": 150}
FIFTY: Final = {"rate": 50.0, "replicas": 20}
FAULTS: Final = {
    "v43-tpot-41ms": Fault(tpot=41 / 22),
    "errors+2%": Fault(errors=0.02),
    "ttft-1.5x": Fault(ttft=1.5),
    "stalls+2%": Fault(stalls=0.02),
    "from-25%": Fault(tpot=41 / 22, from_share=0.25),
    "one-replica-3x": Fault(tpot=3.0, ttft=3.0, one_replica=True),
    "slow-leak-2x-an-hour": Fault(tpot=1.0, leak_per_hour=1.0),
    "5%-of-requests-4x": Fault(tpot=4.0, ttft=4.0, share_hit=0.05),
}
NOISES: Final = {
    "independent": Noise(),
    "blocks-15%": Noise(block=0.15),
    "replicas": Noise(block=0.05, replica=0.10),
    "bursts": Noise(burst=0.3),
    "heavy-tenants": Noise(heavy_tenants=True),
}
EFFECTS: Final = {
    "latency-1.1x": Fault(tpot=1.1, ttft=1.1),
    "latency-1.2x": Fault(tpot=1.2, ttft=1.2),
    "latency-1.5x": Fault(tpot=1.5, ttft=1.5),
    "latency-2x": Fault(tpot=2.0, ttft=2.0),
    "errors+0.5%": Fault(errors=0.005),
    "errors+2%": Fault(errors=0.02),
}
BAKE_SECONDS: Final = 4 * 600.0
POWER_SECONDS: Final = 2 * 3600.0
"""A version that is neither promoted nor rolled back by then is held: three times the plain bake."""
TRIALS: Final = {"aa": 1000, "aa-limits": 200, "power": 100, "faults": 20}


def faults() -> Iterator[tuple[str, Trial]]:
    """Each fault at both sizes."""
    for size, traffic in (("1000rps", SMALL_PLATFORM), ("50rps", FIFTY)):
        for name, fault in FAULTS.items():
            yield f"faults/{name}/{size}", _trial(traffic, fault=fault)


def healthy(rates: Sequence[float]) -> Iterator[tuple[str, Trial]]:
    """Each noise, judged both ways."""
    for rate in rates:
        for name, noise in NOISES.items():
            yield f"aa/{name}/{rate:g}rps", _trial(_traffic(rate), noise=noise)
        for name, noise in NOISES.items():
            literal = JudgeSettings(mode=Mode.LIMITS)
            yield f"aa-limits/{name}/{rate:g}rps", _trial(_traffic(rate), noise=noise, settings=literal)


def power(rates: Sequence[float]) -> Iterator[tuple[str, Trial]]:
    """Each effect at each rate."""
    for name, fault in EFFECTS.items():
        for rate in rates:
            yield f"power/{name}/{rate:g}rps", _trial(_traffic(rate), fault=fault, longest_seconds=POWER_SECONDS)


def _traffic(rate: float) -> dict[str, float]:
    return {"rate": rate, "replicas": 150 if rate >= 1000 else 20}


def _trial(traffic: dict[str, float], **options: object) -> Trial:
    return Trial(rate=traffic["rate"], replicas=int(traffic["replicas"]), **options)  # type: ignore[arg-type]


def _report(report: Report, case: str, results: Sequence[Result]) -> None:
    caught = [result for result in results if result.rolled_back]
    report.measure(case, "rollouts", len(results), "count")
    report.measure(case, "rolled_back", 100 * len(caught) / len(results), "%")
    held = [result for result in results if result.outcome is None]
    report.measure(case, "held", 100 * len(held) / len(results), "%")
    if case.startswith("aa"):
        done = [result.seconds / BAKE_SECONDS for result in results if not result.rolled_back]
        for share in (0.5, 0.95):
            if done:
                report.measure(case, f"duration_by_bake_p{share * 100:g}", quantile(done, share), "ratio")
        return
    for share in (0.5, 0.95):
        if caught:
            name = f"p{share * 100:g}"
            report.measure(case, f"detection_{name}", quantile([result.seconds for result in caught], share), "s")
            report.measure(case, f"exposed_{name}", quantile([result.exposed for result in caught], share), "requests")
            report.measure(case, f"share_{name}", 100 * quantile([result.share for result in caught], share), "%")


def main() -> None:
    """Print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few rollouts each, about a minute")
    parser.add_argument("--part", choices=["faults", "aa", "power"], action="append", help="default: all")
    parser.add_argument("--trials", type=int, help=f"rollouts per case; default {TRIALS}; short: 5")
    parser.add_argument("--rates", type=float, nargs="+", default=[10.0, 50.0, 200.0, 1000.0], help="requests a second")
    parser.add_argument("--case", default="", help="only cases whose name begins so, for example aa/bursts")
    parser.add_argument("--results", type=Path, help="keep single rollouts here, and go on with what is there")
    parser.add_argument("--seconds", type=float, help="stop after so long; needs --results to be of any use")
    arguments = parser.parse_args()
    rates = [50.0] if arguments.short else arguments.rates
    cases = {"faults": faults(), "aa": healthy(rates), "power": power(rates)}
    report, archive = Report("rollout_simulation"), Archive(arguments.results)
    if not compile_evidence():
        print("no C compiler: this takes about twice as long", file=sys.stderr)
    ends = time.monotonic() + (arguments.seconds or float("inf"))
    for part in arguments.part or cases:
        for case, trial in cases[part]:
            trials = arguments.trials or (5 if arguments.short else TRIALS[case.split("/")[0]])
            if case.startswith(arguments.case):
                results = []
                for result in archive.run(case, trial, seeds=trials):
                    results.append(result)
                    if time.monotonic() > ends:
                        print(f"stopped in {case} after {len(results)} of {trials} rollouts", file=sys.stderr)
                        return
                _report(report, case, results)


if __name__ == "__main__":
    main()
