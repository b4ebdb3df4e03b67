"""Every error of this package.

OperatorError
├── SettingsError     a setting cannot be used; the message names it and the way out
├── LeadershipLost    another operator may be writing: no further write
└── NotOurs           an object of the name that we need exists and is not ours
"""


class OperatorError(Exception):
    """Root of the errors of tidewheel.operator."""


class SettingsError(OperatorError):
    """A setting cannot be used."""


class LeadershipLost(OperatorError):  # noqa: N818 - a state, not a mistake
    """The Lease may be somebody else's by now."""


class NotOurs(OperatorError):  # noqa: N818
    """An object of the name that we need exists and does not carry our labels."""
