"""Every error of this package that a person is meant to read.

CliError
├── RollbackRefusedError   the RoutingTable allows no such rollback
│   └── ColdTargetError    it would send traffic to a version that is not known to have replicas
└── ProgramError           an engine or a gateway that was started here ended or never got ready
"""


class CliError(Exception):
    """What went wrong, and what to do next; printed as it is, without a traceback."""


class ProgramError(CliError):
    """A program started here ended, or never got ready; the message carries its last words."""
