"""Errors of the autoscaler, for people.

AutoscalerError
├── SizingError    an assumption of `tidewheel plan` that is none, or makes no sense
├── SeriesError    a demand series that cannot be replayed
└── EventError     a declared event that contradicts itself
"""


class AutoscalerError(Exception):
    """Root; the message names the object, the field and the way out."""


class SizingError(AutoscalerError):
    """An assumption that cannot be used."""


class SeriesError(AutoscalerError):
    """A series that cannot be replayed."""


class EventError(AutoscalerError):
    """A declared event that contradicts itself."""
