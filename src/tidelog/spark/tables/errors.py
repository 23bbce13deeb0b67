"""The errors of tables. Their messages say what would be right."""

from __future__ import annotations


class TableError(ValueError):
    """A table cannot be written or read as asked."""


class VersionGone(TableError):
    """The log of the table does not have this version, or no longer has it, or files of it are deleted."""


class Fenced(TableError):
    """Another driver has written this batch of this writer, or a later one. This driver has to stop."""


class ForeignCheckpoint(TableError):
    """The batch has another checkpoint or other offsets than the table recorded for its writer."""
