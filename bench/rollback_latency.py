"""How long a rollback takes, from Enter or the judge's verdict to the last request that starts on the bad version.

Everything is real: a local cluster, two gateways under load, the operator, a Prometheus, the kubectl plugin as a
program. Engines run the simulated runner, because what is measured is routing. The load notes when each request was
sent and which version answered.

by hand: all traffic goes to v2, `kubectl-rollback` sends it to v1
    command_to_write   from starting the program until the API server has accepted its write
    write_to_last      from sending that write until the last request that still went to v2 was sent (an upper bound
                       of the time since its acceptance, which nobody outside the API server can see)
    write_to_confirmed from the accepted write until the program knew that every gateway obeys

by the judge: several models at once have a slow v2 at 50 %, which is rejected and tried again
    verdict_to_write   from the judge's verdict to the accepted write, as the operator times it (a histogram)
    write_to_last      from the write, as a watch shows it, to the last request that still went to v2 (0: none did)
"""

import argparse
import asyncio

from bench.cluster.installed import installed_platform
from bench.report import Report
from bench.rollback.by_hand import measure_by_hand
from bench.rollback.by_judge import SCRAPE_SECONDS, measure_by_judge

MODELS = 10


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.rollback_latency", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="10 rollbacks of each kind instead of 100")
    parser.add_argument("--by", choices=["hand", "judge"], action="append", help="default: both")
    parser.add_argument("--rounds", type=int, help="that many rollbacks of each kind")
    parser.add_argument("--models", type=int, help=f"judged side by side (default: {MODELS}; short: 5)")
    parser.add_argument(
        "--rate", type=float, default=200.0, help="requests per second over all gateways (default: 200)"
    )
    options = parser.parse_args()
    rounds = options.rounds or (10 if options.short else 100)
    models = options.models or (5 if options.short else MODELS)
    kinds = options.by or ["hand", "judge"]
    report = Report("rollback_latency")
    scrape = SCRAPE_SECONDS if "judge" in kinds else None
    with installed_platform("bench-rollback", scrape_seconds=scrape) as platform:
        if "hand" in kinds:
            asyncio.run(measure_by_hand(platform, rounds=rounds, rate=options.rate, report=report))
        if "judge" in kinds:
            asyncio.run(
                measure_by_judge(platform, models=models, rounds=-(-rounds // models), rate=options.rate, report=report)
            )


if __name__ == "__main__":
    main()
