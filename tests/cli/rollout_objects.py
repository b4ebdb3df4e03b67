"""Builds the objects of a rollout as the API server sends them."""

from typing import Any

from tests.cli.rollback_tables import split
from tests.cli.rollback_tables import table as routing_table

Wire = dict[str, Any]

ERRORS = {
    "name": "errors",
    "standing": "ok",
    "canary": 0.00147,
    "base": 0.00093,
    "estimate": 0.00054,
    "limit": 0.005,
    "canarySamples": 6120,
    "baseSamples": 18240,
    "evidence": "0.4:1",
    "needed": "2,400:1",
    "ruledOut": "31:1",
    "message": "errors canary 9/6120 (0.147 %), base 17/18240 (0.0932 %), limit +0.5 %",
}
TPOT = {
    "name": "tpot",
    "standing": "watch",
    "canary": 0.071,
    "base": 0.057,
    "estimate": 1.25,
    "limit": 1.2,
    "canarySamples": 6000,
    "baseSamples": 18000,
    "evidence": "310:1",
    "needed": "2,400:1",
    "message": "TPOT p99 canary 71 ms, base 57 ms, 1.25x (limit 1.20x)",
}


def rollout(**fields: Any) -> Wire:
    """Step 3 of 5, baking, under suspicion."""
    return {
        "id": "r7",
        "phase": "Baking",
        "from": {"v42": 10_000},
        "to": {"v43": 10_000},
        "base": "v42",
        "canary": "v43",
        "step": 2,
        "steps": 5,
        "bakedSeconds": 440.0,
        "bakeSeconds": 600.0,
        "verdict": "SUSPECT",
        "reason": "Baking",
        "message": "v42:75% v43:25% baked 440/600 s, SUSPECT: over the limit",
        "observedShare": 0.248,
        "metrics": [ERRORS, TPOT],
        "report": ["step 3/5 ...", " why: ...", " next: at this rate decided in about 1m30s"],
        "history": [{"id": "r6", "outcome": "Promoted", "message": "v42:100% is reached"}],
        **fields,
    }


def finished(outcome: str, message: str = "said so") -> Wire:
    """A rollout that has ended."""
    return rollout(phase="Finished", outcome=outcome, message=message, verdict="", metrics=[])


def condition(kind: str, status: str = "True", reason: str = "Because", message: str = "because of that") -> Wire:
    """One condition of a status."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": 4}


def rule(progress: Wire | None = None, *conditions: Wire, seen: int = 4, **spec: Any) -> Wire:
    """The RoutingRule default/chat, which wants v43."""
    status: Wire = {"observedGeneration": seen, "conditions": list(conditions)}
    if progress is not None:
        status["rollout"] = progress
    traffic = [{"version": "v42", "percent": 0}, {"version": "v43", "percent": 100}]
    return {
        "metadata": {"namespace": "default", "name": "chat", "generation": 4},
        "spec": {"model": "chat", "traffic": traffic, **spec},
        "status": status,
    }


def table(control: Wire | None = None, *, weights: dict[str, int] | None = None, **fields: Any) -> Wire:
    """The RoutingTable at 25 % of v43."""
    if control is not None:
        fields["control"] = control
    return routing_table(split(**(weights or {"v42": 7500, "v43": 2500})), **fields)
