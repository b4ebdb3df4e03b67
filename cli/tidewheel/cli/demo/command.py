"""What a person types."""

import click


@click.command()
@click.option("--keep", is_flag=True, help="Leave the cluster up and say what to type next (make demo KEEP=1).")
@click.option(
    "--name", default="demo", show_default=True, help="Name of the local cluster; one of that name is replaced."
)
@click.option("--requests", default=200, show_default=True, help="Requests that measure the split.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds a model may take until it serves.")
def demo(*, keep: bool, name: str, requests: int, timeout: float) -> None:
    """The main job on a real local cluster: YAML in, tokens out, a canary, a rollback, a judge.

    As root, on Debian or the like. The first run builds Kubernetes and Prometheus (about 12 minutes on 2 cores, kept in
    ~/.cache/tidewheel); later ones one to two minutes. Nothing stays behind, also after a kill -9 and a second run.

    \b
    Examples:
      tidewheel demo
      tidewheel demo --keep
    """
    from tidewheel.cli.demo.story import Demo, DemoSettings

    Demo(DemoSettings(name=name, keep=keep, requests=requests, timeout_seconds=timeout)).run()
