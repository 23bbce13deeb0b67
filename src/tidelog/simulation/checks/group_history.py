"""Lines of a history of a group: what its members did.

The order of the lines is an order in time.
"""

from __future__ import annotations

from dataclasses import dataclass

NOBODY = "-"
BROKER = "broker"  # who, in the lines that say what was done to the broker


@dataclass(slots=True, frozen=True)
class Line:
    """`offset` is a record's offset where it was read, and the next one to read where it is committed.

    `detail` is the generation of an assignment where the client tells it, for a static member with a colon
    and its instance id behind it; the value of a record; or an error.
    """

    who: str
    what: str
    topic: str = NOBODY
    partition: int = -1
    offset: int = -1
    detail: str = NOBODY

    def text(self) -> str:
        return f"{self.who} {self.what} {self.topic} {self.partition} {self.offset} {self.detail}\n"

    @staticmethod
    def parse(text: str) -> Line:
        who, what, topic, partition, offset, detail = text.split(" ", 5)
        return Line(who, what, topic, int(partition), int(offset), detail.rstrip("\n"))
