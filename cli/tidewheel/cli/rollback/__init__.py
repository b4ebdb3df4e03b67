"""`kubectl rollback MODEL`: one write to one small object, by hand, with the caller's own rights.

It needs neither the operator nor a gateway to be reachable, and imports only what it needs: it is typed in a hurry.
"""

from tidewheel.cli.rollback.command import main

__all__ = ["main"]
