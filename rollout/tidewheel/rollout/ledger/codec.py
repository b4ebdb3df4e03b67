"""The ledger as text: JSON for people, the same JSON compressed for a ConfigMap. Either is read back."""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Final

from tidewheel.crds.rolloutchoices import Direction, Metric, Mode
from tidewheel.rollout.errors import LedgerError
from tidewheel.rollout.judge.blocks import ArmBlock, Block, Counts
from tidewheel.rollout.judge.findings import VerdictKind
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.readings import CustomReading
from tidewheel.rollout.judge.settings import CustomMetric, JudgeSettings
from tidewheel.rollout.judge.steps import Layout, StepContext
from tidewheel.rollout.ledger.records import Ledger, LedgerTransition, Look, StepRecord

_FORMAT: Final = 1
_COMPRESSED: Final = "tidewheel-ledger:"


def to_json_text(ledger: Ledger) -> str:
    """One JSON object, for reading and for `tidewheel replay`."""
    return json.dumps(_ledger_out(ledger), separators=(",", ":"))


def to_compressed_text(ledger: Ledger) -> str:
    """About a fifth of the size, for a ConfigMap."""
    return _COMPRESSED + b64encode(zlib.compress(to_json_text(ledger).encode(), 9)).decode()


def from_text(text: str) -> Ledger:
    """Either form. Raises LedgerError."""
    try:
        text = text.strip()
        if text.startswith(_COMPRESSED):
            text = zlib.decompress(b64decode(text.removeprefix(_COMPRESSED))).decode()
        data = json.loads(text)
        if data["format"] != _FORMAT:
            raise LedgerError(f"the ledger has format {data['format']}, this program reads {_FORMAT}")
        return Ledger(
            steps=tuple(_step_in(step) for step in data["steps"]),
            transitions=tuple(LedgerTransition(**entry) for entry in data["transitions"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, zlib.error) as error:
        raise LedgerError(f"this is no ledger, or it is damaged: {error!r}") from error


def _ledger_out(ledger: Ledger) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "steps": [_step_out(step) for step in ledger.steps],
        "transitions": [_record(entry) for entry in ledger.transitions],
    }


def _step_out(step: StepRecord) -> dict[str, Any]:
    layout = step.layout
    return {
        "context": _record(step.context),
        "settings": settings_out(step.settings),
        "edges": {kind.value: list(edges) for kind, edges in layout.edges.items()},
        "landmarks": {kind.value: list(numbers) for kind, numbers in layout.landmarks.items()},
        "promptEdges": list(layout.prompt_edges),
        "forgotten": step.forgotten,
        "looks": [
            [look.at, look.kind.value, look.reason, look.message, _block_out(look.block) if look.block else None]
            for look in step.looks
        ],
    }


def _step_in(data: Mapping[str, Any]) -> StepRecord:
    context = dict(data["context"])
    context["slo"] = {Latency(kind): seconds for kind, seconds in context.get("slo", {}).items()}
    layout = Layout(
        edges={Latency(kind): tuple(edges) for kind, edges in data["edges"].items()},
        landmarks={Latency(kind): tuple(numbers) for kind, numbers in data["landmarks"].items()},
        prompt_edges=tuple(data["promptEdges"]),
    )
    looks = tuple(
        Look(
            at=at,
            kind=VerdictKind(kind),
            reason=reason,
            message=message,
            block=_block_in(block, layout) if block else None,
        )
        for at, kind, reason, message, block in data["looks"]
    )
    return StepRecord(
        context=StepContext(**context),
        settings=settings_in(data["settings"]),
        layout=layout,
        looks=looks,
        forgotten=data["forgotten"],
    )


def settings_out(settings: JudgeSettings) -> dict[str, Any]:
    """Every setting, also those at their default: defaults may change, an old decision does not."""
    written = _record(settings)
    for name in ("metrics", "dry_run"):
        if written[name] is not None:
            written[name] = sorted(written[name])
    return written


def settings_in(data: Mapping[str, Any]) -> JudgeSettings:
    """Raises SettingsError for settings that cannot be obeyed."""
    values = dict(data)
    values["mode"] = Mode(values["mode"])
    if values["metrics"] is not None:
        values["metrics"] = tuple(Metric(name) for name in values["metrics"])
    values["dry_run"] = frozenset(Metric(name) for name in values["dry_run"])
    values["load_ratio"] = tuple(values["load_ratio"])
    values["custom"] = tuple(
        CustomMetric(**{**metric, "direction": Direction(metric["direction"])}) for metric in values["custom"]
    )
    return JudgeSettings(**values)


def _block_out(block: Block) -> list[Any]:
    custom = {name: [reading.base, reading.canary] for name, reading in block.custom.items()}
    times = [block.start, block.end, block.load_ratio, int(block.counts_time)]
    return [*times, _arm_out(block.base), _arm_out(block.canary), custom]


def _block_in(data: Sequence[Any], layout: Layout) -> Block:
    start, end, load_ratio, counts_time, base, canary, custom = data
    return Block(
        start=start,
        end=end,
        base=_arm_in(base, layout),
        canary=_arm_in(canary, layout),
        load_ratio=load_ratio,
        custom={name: CustomReading(*pair) for name, pair in custom.items()},
        counts_time=bool(counts_time),
    )


def _arm_out(arm: ArmBlock) -> list[Any]:
    return [
        arm.requests,
        arm.errors,
        arm.stalls,
        {kind.value: count for kind, count in arm.over_slo.items()},
        {kind.value: _sparse(counts) for kind, counts in arm.latency.items()},
        _sparse(arm.prompt_tokens),
    ]


def _arm_in(data: Sequence[Any], layout: Layout) -> ArmBlock:
    requests, errors, stalls, over_slo, latency, prompts = data
    return ArmBlock(
        requests=requests,
        errors=errors,
        stalls=stalls,
        over_slo={Latency(kind): count for kind, count in over_slo.items()},
        latency={
            Latency(kind): _dense(counts, len(layout.edges[Latency(kind)]) + 1) for kind, counts in latency.items()
        },
        prompt_tokens=_dense(prompts, len(layout.prompt_edges) + 1) if prompts else (),
    )


def _sparse(counts: Counts) -> list[float]:
    """The first bucket that has any, then counts up to the last that has; whole numbers without a point."""
    filled = [bucket for bucket, count in enumerate(counts) if count]
    if not filled:
        return [0] if counts else []
    return [filled[0], *(int(count) if count == int(count) else count for count in counts[filled[0] : filled[-1] + 1])]


def _dense(sparse: Sequence[float], buckets: int) -> Counts:
    first, *counts = sparse
    before = (0.0,) * int(first)
    return (*before, *map(float, counts), *(0.0,) * (buckets - len(before) - len(counts)))


def _record(item: Any) -> dict[str, Any]:
    return {part.name: _plain(getattr(item, part.name)) for part in fields(item)}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, frozenset, list)):
        return [_plain(entry) for entry in value]
    return _record(value) if hasattr(value, "__dataclass_fields__") else value
