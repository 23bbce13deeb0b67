"""The errors of tables. Their messages say what would be right."""

from __future__ import annotations


class TableError(ValueError):
    """A table cannot be written or read as asked."""


class VersionGone(TableError):
    """The log of the table has this version not, or no longer."""


class Fenced(TableError):
    """Another driver has written this batch of this writer, or a later one. This driver has to stop."""


class ForeignCheckpoint(TableError):
    """The batch has another checkpoint or other offsets than the table recorded for its writer."""
