"""Plans of new offsets as CSV: `topic,partition,offset`, with the group in front for several groups."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping

from tidelog.clients.offset_reset import Offsets

# As in Kafka's tool, exported plans quote a name that is longer or has a character below "-".
LONGEST_BARE_NAME = 24


class NegativeOffset(ValueError):
    """A plan has an offset below 0."""


def exported(plans: Mapping[str, Offsets], *, with_group: bool) -> str:
    return "".join(
        f"{quoted(group_id) + ',' if with_group else ''}{quoted(topic)},{index},{offset}\n"
        for group_id, plan in plans.items()
        for (topic, index), offset in sorted(plan.items())
    )


def quoted(name: str) -> str:
    if len(name) <= LONGEST_BARE_NAME and all(character >= "-" for character in name):
        return name
    return '"' + name.replace('"', '""') + '"'


def parse_plans(text: str, only_group: str | None) -> dict[str, Offsets]:
    """The offsets of each group in a CSV file; a file for one group may leave out its id."""
    rows = list(csv.reader(text.rstrip("\n").split("\n"), strict=True))
    bare = only_group is not None and bool(rows) and len(rows[0]) == 3
    plans: dict[str, Offsets] = {}
    for number, row in enumerate(rows, 1):
        fields = [only_group or "", *row] if bare else row
        if len(fields) != 4:
            raise ValueError(
                f"line {number} has {len(row)} columns; expected topic,partition,offset for one group, or "
                "group,topic,partition,offset"
            )
        group_id, topic, index, offset = fields
        if not re.fullmatch(r" *\d{1,9} *", index, re.ASCII):
            raise ValueError(f"line {number}: {index!r} is not a partition")
        if not re.fullmatch(r" *[-+]?\d{1,18} *", offset, re.ASCII):
            raise ValueError(f"line {number}: {offset!r} is not an offset")
        if int(offset) < 0:
            raise NegativeOffset(f"line {number}: offset {int(offset)} is negative")
        plans.setdefault(group_id, {})[topic, int(index)] = int(offset)
    return plans
