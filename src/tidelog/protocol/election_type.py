"""The types of election that ElectLeaders can ask for."""

from __future__ import annotations

from enum import IntEnum


class ElectionType(IntEnum):
    """A preferred leader, or with UNCLEAN any replica that is alive: it may lack records."""

    PREFERRED = 0
    UNCLEAN = 1
