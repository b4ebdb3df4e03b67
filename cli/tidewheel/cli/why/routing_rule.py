"""A RoutingRule explained: the rollout, each metric against its limit, and what a person asked for."""

from collections.abc import Sequence

from tidewheel.cli.rollout.connection import Connection
from tidewheel.cli.rollout.progress import progress_of
from tidewheel.cli.rollout.words import explanation


async def explain_rule(connection: Connection, name: str) -> Sequence[str] | None:
    """Lines for people; None where there is neither a rule nor a table of that name."""
    rule, table = await connection.rule_and_table(name)
    if rule is None and table is None:
        return None
    return explanation(progress_of(rule, table, namespace=connection.namespace, model=name))
