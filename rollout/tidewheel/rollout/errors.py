"""Every error of this package.

RolloutError
├── SettingsError   a setting that cannot be obeyed; the message names the field and the way out
├── StateError      a persisted state that cannot be read back
└── LedgerError     a ledger that cannot be read back
"""


class RolloutError(Exception):
    """Root of what this package raises."""


class SettingsError(RolloutError):
    """A setting that cannot be obeyed."""


class StateError(RolloutError):
    """A persisted state that cannot be read back: the step starts again, nothing advances."""


class LedgerError(RolloutError):
    """A ledger that cannot be read back."""
