"""`tidewheel cluster`: a real Kubernetes on this machine."""

from __future__ import annotations

import shutil
import sys

import click
from rich.console import Console

from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.errors import ClusterError
from tidewheel.cli.cluster.folders import running_names
from tidewheel.cli.cluster.go_modules import KUBERNETES, MODULES
from tidewheel.cli.cluster.host_mounts import compile_kernels
from tidewheel.cli.cluster.prebuilt import find_helm
from tidewheel.cli.cluster.preflight import check_root, install_packages
from tidewheel.cli.cluster.progress import ConsoleProgress
from tidewheel.cli.cluster.providers import PROVIDERS, open_cluster
from tidewheel.cli.cluster.settings import DEFAULT_NAME, ClusterSettings
from tidewheel.cli.cluster.status import ClusterStatus

_name = click.option("--name", default=DEFAULT_NAME, show_default=True, help="Names run side by side.")


@click.group()
def cluster() -> None:
    """A real Kubernetes on this machine, without Docker and without a registry.

    etcd, API server, controller-manager, scheduler, and nodes with containerd, kubelet and kube-proxy. They are built
    from pinned Go modules on first use (about 6 minutes on two cores) and kept in ~/.cache/tidewheel.
    """


@cluster.command()
@_name
@click.option("--provider", type=click.Choice(PROVIDERS), help="Default: local. existing: $KUBECONFIG.")
@click.option("--nodes", type=click.IntRange(1, 9), default=1, show_default=True, help="Nodes that run pods.")
@click.option("--gpus", type=click.IntRange(0, 64), default=8, show_default=True, help="Simulated GPUs per node.")
@click.option(
    "--kwok", type=click.IntRange(0, 5000), default=0, show_default=True, help="More nodes, whose pods are not real."
)
@click.option("--prometheus/--no-prometheus", default=False, show_default=True, help="Scrape Tidewheel's pods.")
def up(*, name: str, provider: str | None, nodes: int, gpus: int, kwok: int, prometheus: bool) -> None:
    """Start a cluster, or repair one of that name."""
    settings = ClusterSettings(name=name, nodes=nodes, gpus=gpus, kwok_nodes=kwok, prometheus=prometheus)
    progress = ConsoleProgress()
    opened = open_cluster(settings, progress=progress, provider=provider)
    try:
        opened.up()
    except KeyboardInterrupt:
        click.echo(f"interrupted; this removes what was started: tidewheel cluster down{_flag(name)}", err=True)
        raise
    _print(opened.status(), components=False)
    click.echo(f"\nexport KUBECONFIG={opened.kubeconfig}")
    if shutil.which("kubectl") is None:
        click.echo(f'export PATH="{Binaries(progress).path("kubectl").parent}:$PATH"')
    click.echo(f"\nkubectl get nodes\ntidewheel cluster down{_flag(name)}")


@cluster.command()
def prepare() -> None:
    """Install and build everything a local cluster may need, and start nothing.

    `up` does the same for what it is asked for. Done once per version: about 12 minutes on two cores.
    """
    progress = ConsoleProgress()
    check_root()
    install_packages(progress)
    with progress.stage("the engine's C++ kernels (once)", usually_seconds=6):
        shortcoming = compile_kernels()
    if shortcoming:
        click.echo(shortcoming)
    binaries = Binaries(progress)
    for module in MODULES:
        binaries.ensure(module, module.products)
    click.echo(f"helm is {find_helm(progress)}, the rest is in {binaries.folder(KUBERNETES).parent}")


@cluster.command()
@_name
def down(name: str) -> None:
    """Stop a cluster and remove everything of it, whatever state it is in."""
    progress = ConsoleProgress()
    opened = open_cluster(ClusterSettings(name=name), progress=progress)
    with progress.stage(f"removing cluster {name}", usually_seconds=1):
        opened.down()


@cluster.command()
@_name
def status(name: str) -> None:
    """Say what runs: components, nodes, addresses, logs."""
    names = running_names()
    if name not in names:
        others = f" There is: {', '.join(names)} (use --name)." if names else ""
        raise ClusterError(f"no cluster {name!r}: start it with `tidewheel cluster up{_flag(name)}`.{others}")
    found = open_cluster(ClusterSettings(name=name), progress=ConsoleProgress()).status()
    _print(found, components=True)
    sys.exit(1 if found.problem else 0)


def _print(status: ClusterStatus, *, components: bool) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"cluster     {status.name} ({status.provider})")
    console.print(f"API         {status.api}")
    console.print(f"kubeconfig  {status.kubeconfig}")
    if status.prometheus:
        console.print(f"Prometheus  {status.prometheus}")
    for line in status.nodes:
        console.print(f"node        {line}")
    if components and status.components:
        console.print(f"logs        {status.components[0].log.parent}\n")
        for each in status.components:
            state = f"pid {each.pid:<8}{each.memory_mib:6.0f} MiB" if each.pid else "[red]ended[/]"
            console.print(f"{each.name:<26}{state}")
    if status.problem:
        console.print(f"[red]problem[/]     {status.problem}")


def _flag(name: str) -> str:
    return "" if name == DEFAULT_NAME else f" --name {name}"
