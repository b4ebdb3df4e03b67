"""What a person types and sees."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from tidewheel.cli.chat.conversation import Conversation, Reply
from tidewheel.cli.chat.endpoint import Endpoint, at_cluster
from tidewheel.cli.errors import CliError

_DEFAULT_URL: Final = "http://127.0.0.1:8080"
_HELP_LINE: Final = "/new starts over · Ctrl-C stops a reply · Ctrl-D leaves"


@click.command()
@click.argument("text", nargs=-1)
@click.option("--model", help="Name of the model.  [default: the only one that is served]")
@click.option("--url", help=f"A gateway.  [default: {_DEFAULT_URL}, where `tidewheel serve` answers]")
@click.option("--context", help="Talk to a cluster: context of the kubeconfig.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Talk to a cluster: this kubeconfig.")
@click.option(
    "--gateways-in", default="tidewheel-system", show_default=True, help="Namespace of the cluster's gateways."
)
@click.option("--system", help="System message.")
@click.option("--max-tokens", default=512, show_default=True, help="Longest reply.")
@click.option("--temperature", type=float, help="0 always says the same.  [default: the model's]")
def chat(
    *,
    text: tuple[str, ...],
    model: str | None,
    url: str | None,
    context: str | None,
    kubeconfig: Path | None,
    gateways_in: str,
    system: str | None,
    max_tokens: int,
    temperature: float | None,
) -> None:
    """Talk to a model, token by token. With TEXT: one answer, then the end.

    \b
    Examples:
      tidewheel chat                                     with what `tidewheel serve` runs
      tidewheel chat "Why is the sky blue?" --max-tokens 60
      tidewheel chat --context prod --model shop/chat    with a cluster, through its API server
      git diff | tidewheel chat "Write a commit title for this:" -
    """
    if url and (context or kubeconfig):
        raise click.UsageError("--url names a gateway, --context and --kubeconfig a cluster: give one of them")
    if context or kubeconfig:
        endpoint = at_cluster(kubeconfig=kubeconfig, context=context, gateways_in=gateways_in)
    else:
        endpoint = Endpoint((url or _DEFAULT_URL).rstrip("/").removesuffix("/v1"))
    conversation = Conversation(
        endpoint,
        model or _only_model(endpoint),
        max_tokens=max_tokens,
        temperature=temperature,
        system=system,
    )
    if text:
        _answer(conversation, _with_input(text))
    else:
        _converse(conversation)


def _only_model(endpoint: Endpoint) -> str:
    names = [str(entry["id"]) for entry in endpoint.get("/v1/models").get("data", ())]
    if len(names) == 1:
        return names[0]
    if not names:
        raise CliError(f"{endpoint.url} serves no model yet: apply a ModelVersion and a RoutingRule")
    raise CliError(f"{endpoint.url} serves several models; choose one with --model: {', '.join(sorted(names))}")


def _with_input(text: tuple[str, ...]) -> str:
    return " ".join(sys.stdin.read() if word == "-" else word for word in text)


def _converse(conversation: Conversation) -> None:
    click.secho(f"{conversation.model} at {conversation.endpoint.url}. {_HELP_LINE}", dim=True)
    for line in _lines():
        if line == "/new":
            conversation.messages.clear()
            conversation.id = Conversation(conversation.endpoint, "", max_tokens=0).id
            click.secho("a new conversation", dim=True)
            continue
        try:
            _answer(conversation, line)
        except CliError as error:
            click.secho(f"\n{error}", fg="red", err=True)


def _lines() -> Iterator[str]:
    import readline  # noqa: F401 - importing it gives input() its line editing

    while True:
        try:
            line = input("\n> ").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            click.echo()
            return
        if line:
            yield line


def _answer(conversation: Conversation, text: str) -> None:
    reply = Reply()
    try:
        for piece in conversation.say(text, reply=reply):
            click.echo(piece, nl=False)
    except KeyboardInterrupt:
        click.secho("\n(stopped)", dim=True)
        return
    click.echo()
    click.secho(reply.summary(), dim=True, err=True)
