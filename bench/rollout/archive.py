"""Results of single rollouts in a file, so that a long simulation goes on where it was stopped."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.rollout.trials import Result, Trial, run

from tidewheel.rollout.machine.state import Outcome


class Archive:
    """One JSON line per case and seed. Without a file everything is run afresh and nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[tuple[str, int], Result] = {}
        if path is not None and path.exists():
            self._found = dict(map(_read, path.read_text().splitlines()))

    def run(self, case: str, trial: Trial, *, seeds: int) -> Iterator[Result]:
        """Seeds 0 to ``seeds``; those that are there already are not run again."""
        for seed in range(seeds):
            known = self._found.get((case, seed))
            yield known if known is not None else self._keep(case, seed, run(trial, seed))

    def _keep(self, case: str, seed: int, result: Result) -> Result:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"case": case, "seed": seed, **asdict(result)}) + "\n")
        return result


def _read(line: str) -> tuple[tuple[str, int], Result]:
    entry = json.loads(line)
    case, seed, outcome = entry.pop("case"), entry.pop("seed"), entry.pop("outcome")
    return (case, seed), Result(outcome=Outcome(outcome) if outcome else None, **entry)
