"""`python -m tidewheel.cli.cluster up|down|status`."""

from tidewheel.cli.cluster.commands import cluster

cluster()
