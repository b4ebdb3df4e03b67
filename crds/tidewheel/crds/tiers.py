"""Tiers: what each class of users is promised, and what is taken from it first when capacity is short."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidewheel.crds.base import ModelName, Record


class Lane(StrEnum):
    """Queues in order of service; lower ones keep a small guaranteed share."""

    PAID = "paid"
    FREE = "free"
    BACKGROUND = "background"


_Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Tier(Record):
    """Limits of one tier on one model. What is absent is not limited."""

    lane: Annotated[
        Lane | None, Field(description="Queue that its requests wait in; absent: the lane of the tier's own name.")
    ] = None
    tokens_per_minute: Annotated[
        _Tokens | None,
        Field(description="Tokens a minute (prompt and reply) of each user; absent: no limit."),
    ] = None
    burst_tokens: Annotated[
        _Tokens | None,
        Field(description="Tokens that a user may spend at once; absent: those of one minute. No request costs more."),
    ] = None
    requests_per_minute: Annotated[
        int | None, Field(ge=1, le=1_000_000, description="Requests per 60 seconds of each user; absent: no limit.")
    ] = None
    total_tokens_per_minute: Annotated[
        _Tokens | None,
        Field(description="Tokens a minute of all users of the tier together; absent: no limit."),
    ] = None
    max_output_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="Longest reply in tokens; requests that ask for more, or do not say, get this.",
        ),
    ] = None
    reduced_output_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="Longest reply in tokens from rung 2 of the ladder on; absent: half of maxOutputTokens, or "
            "512. Replies of the paid lane are never shortened.",
        ),
    ] = None
    fallback_model: Annotated[
        ModelName | None,
        Field(
            description="Smaller model of the same namespace that answers from rung 3 of the ladder on, and says so; "
            "absent: none."
        ),
    ] = None
    max_wait_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=86_400,
            description="A request that would wait more seconds in its queue is refused at once, with that time in "
            "Retry-After; absent: the gateway's setting.",
        ),
    ] = None
    message: Annotated[
        str,
        Field(max_length=512, description="Sentence that users are told when their tier is degraded or refused."),
    ] = ""


class Tiers(Record):
    """Limits by tier; keys name a tier, and keyless use counts as the gateway's setting says (free)."""

    paid: Annotated[Tier | None, Field(description="Users who pay.")] = None
    free: Annotated[Tier | None, Field(description="Users who do not.")] = None
    background: Annotated[Tier | None, Field(description="Work that nobody waits for.")] = None
