"""Leadership: tells a coordinator which partitions of its internal topic this broker leads."""

from __future__ import annotations

from typing import Protocol

from tidelog.cluster.partition import Partition


class Leadership(Protocol):
    """Implemented by a coordinator, for the partitions of its internal topic."""

    def elected(self, partition: Partition) -> None:
        """This broker begins to lead the partition with its present leader epoch."""

    def resigned(self, partition: int) -> None:
        """This broker does not lead the partition any more, or never did."""
