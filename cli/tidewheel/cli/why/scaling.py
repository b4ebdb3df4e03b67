"""The arithmetic of a version's size, from its status: every number that the decision rests on. Pure."""

from collections.abc import Mapping
from typing import Any


def scaling_lines(status: Mapping[str, Any]) -> list[str]:
    """Lines about forecast, margin, need, capacity, order and starts; none where the version is not scaled."""
    scaling = status.get("scaling")
    if not scaling:
        return _start_lines(status)
    lines = [f" size: {scaling.get('message', '')}"]
    lines += [_unit_line(unit) for unit in scaling.get("units", ())]
    capacity = status.get("capacity")
    if capacity:
        lines.append(
            f" one replica: {capacity['decodeTokensPerSecond']:,} decode tok/s, "
            f"{capacity['prefillTokensPerSecond']:,} prefill tok/s, {capacity['kvTokens']:,} KV tokens, "
            f"{capacity['maxStreams']} streams ({capacity['source']})"
        )
    order = f" order: {status.get('desiredReplicas', 0)} desired, {status.get('readyReplicas', 0)} ready"
    pending = scaling.get("pending", ())
    if pending:
        order += f", {len(pending)} pending (the next expected at {min(entry['expectedReady'] for entry in pending)})"
    if status.get("drainingReplicas"):
        order += f", {status['drainingReplicas']} draining"
    order += f"; bound by {scaling.get('binding') or 'nothing yet'}"
    if scaling.get("shortfall"):
        order += f"; {scaling['shortfall']} needed and not allowed"
    lines.append(order)
    if scaling.get("forecastBy"):
        lines.append(f" forecast by: {scaling['forecastBy']}, looking {scaling.get('leadSeconds', 0)} s ahead")
    if scaling.get("updatedAt"):
        lines.append(f" worked out at {scaling['updatedAt']}")
    return lines + _start_lines(status)


def _unit_line(unit: Mapping[str, Any]) -> str:
    present = f"{unit['present']:,} offered" if "present" in unit else "not known now"
    need, capacity = unit.get("need", 0), unit.get("capacity", 0)
    replicas = f" = {need / capacity:.2f} replicas" if capacity else ""
    return (
        f"   {unit['unit']:>13}: {present}; {unit.get('forecast', 0):,} forecast, +{unit.get('marginPercent', 0)} % "
        f"-> {need:,} needed / {capacity:,} a replica{replicas}"
    )


def _start_lines(status: Mapping[str, Any]) -> list[str]:
    starts = status.get("coldStart")
    if not starts:
        return []
    lines = [f" starts: p50 {starts['p50Seconds']} s, p95 {starts['p95Seconds']} s"]
    lines += [
        f"   {sample['pod']} ({sample['path']}): {sample['totalSeconds']} s = node {sample.get('scheduledSeconds', 0)} "
        f"+ image {sample.get('imageSeconds', 0)} + engine {sample.get('engineSeconds', 0)}"
        for sample in starts.get("samples", ())[-3:]
    ]
    return lines
