"""What a rollback did, in the words it is printed in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidewheel.cli.rollback.gateways import Confirmation
from tidewheel.cli.rollback.plan import RollbackPlan


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done, for people and for scripts."""

    plan: RollbackPlan
    actor: str
    generation: int
    dry_run: bool
    write_ms: float
    """From the start of the program to the accepted write."""
    sent_at: float
    """When the write was sent, in seconds since 1970 by this machine's clock."""
    written_at: float
    """When its acceptance was known."""
    confirmations: Sequence[Confirmation]
    note: str = ""

    @property
    def is_confirmed(self) -> bool:
        """Whether every gateway that was asked obeys."""
        return all(confirmation.ms is not None for confirmation in self.confirmations) and not self.note

    def lines(self) -> list[str]:
        """For people."""
        plan = self.plan
        if not plan.is_needed:
            return [f"{plan.message}; nothing to do"]
        if self.dry_run:
            return [
                f"{plan.namespace}/{plan.model} would be {plan.message}",
                *self._rejections(),
                "nothing was written",
            ]
        return [
            f"{plan.namespace}/{plan.model} {plan.message}",
            *self._rejections(),
            f"  written as generation {self.generation} in {self.write_ms:.0f} ms, as {self.actor}",
            *self._gateways(),
        ]

    def _rejections(self) -> list[str]:
        name = self.plan.model
        return [
            f"  {version} is rejected: not tried again until it changes, or `kubectl rollback {name} --to {version}`"
            for version in self.plan.rejected
        ]

    def _gateways(self) -> list[str]:
        if self.note:
            return [f"  {self.note}"]
        obeyed = [(c.pod, c.ms) for c in self.confirmations if c.ms is not None]
        lines = []
        if obeyed:
            each = ", ".join(f"{pod} {ms:.0f}" for pod, ms in obeyed)
            slowest = max(ms for _, ms in obeyed)
            lines.append(f"  {len(obeyed)} of {len(self.confirmations)} gateways obey, after {slowest:.0f} ms ({each})")
        lines += [f"  {c.pod} has not confirmed: {c.problem}" for c in self.confirmations if c.ms is None]
        return lines

    def to_wire(self) -> dict[str, Any]:
        """For scripts."""
        plan = self.plan
        return {
            "namespace": plan.namespace,
            "model": plan.model,
            "from": _shares(plan.before),
            "to": _shares(plan.after),
            "rejected": list(plan.rejected),
            "message": plan.message,
            "actor": self.actor,
            "changed": plan.is_needed and not self.dry_run,
            "dryRun": self.dry_run,
            "generation": self.generation,
            "writeMs": round(self.write_ms, 1),
            "sentAt": round(self.sent_at, 4),
            "writtenAt": round(self.written_at, 4),
            "confirmed": self.is_confirmed,
            "note": self.note,
            "gateways": [{"pod": c.pod, "ms": c.ms, "problem": c.problem} for c in self.confirmations],
        }


def _shares(split: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"version": target["version"], "weight": target["weight"]} for target in split]
