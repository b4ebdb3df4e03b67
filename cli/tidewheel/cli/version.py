"""`tidewheel version`."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Final

import click

from tidewheel.crds.names import GROUP_VERSION

_PROGRAMS: Final = {"operator": "kopf", "gateway": "uvloop", "engine": "torch", "cli": "rich"}
"""Extra of each program -> the package that tells whether it is installed."""


@click.command()
def version() -> None:
    """What is installed: Tidewheel, its API version, Python, and which programs can run here.

    \b
    Example:
      tidewheel version
    """
    click.echo(f"tidewheel {installed_version('tidewheel')}  API {GROUP_VERSION}  Python {platform.python_version()}")
    for program, package in _PROGRAMS.items():
        click.echo(f"  {program:<9}{_describe(program, package)}")


def _describe(program: str, package: str) -> str:
    try:
        return f"{package} {installed_version(package)}"
    except PackageNotFoundError:
        return f"not installed: pip install 'tidewheel[{program}]'"
