"""Moments as Kubernetes writes them: UTC, whole seconds."""

from datetime import UTC, datetime


def parse_moment(text: str) -> datetime:
    """A moment from RFC 3339 text; raises ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def format_moment(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as the API server stores it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
