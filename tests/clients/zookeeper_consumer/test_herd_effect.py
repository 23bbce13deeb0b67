"""The herd effect: one consumer that joins makes every member release, read and claim everything again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from functools import cache

from tests.clients.zookeeper_consumer.group_world import GroupWorld, in_world
from tests.docs.pages import PROJECT
from tidelog.metadata.tree import Delete, Operation

PARTITIONS = 64
BROKERS = 3
SIZES = (4, 8, 16, 32)


@dataclass(slots=True)
class Join:
    """What it cost when one consumer joined a group."""

    members: int
    rebalanced: int
    """How many of the members stopped and started their fetchers."""
    released: int
    """How many partitions lost their owner."""
    operations: Counter[str]

    @property
    def reads(self) -> int:
        return sum(self.operations[kind] for kind in ("get", "exists", "children"))

    @property
    def writes(self) -> int:
        return sum(self.operations[kind] for kind in ("create", "set", "delete"))

    def row(self) -> str:
        """The row of the table in the documentation."""
        cells = (self.members, self.rebalanced, self.released, self.reads, self.writes)
        return f"| {' | '.join(map(str, cells))} |"


def expected_owners(count: int) -> dict[int, str]:
    share, extra = divmod(PARTITIONS, count)
    sizes = [share + (1 if index < extra else 0) for index in range(count)]
    names = [f"c{index:02d}-0" for index, size in enumerate(sizes) for _ in range(size)]
    return dict(enumerate(names))


@cache
def join(members: int) -> Join:
    """Let a consumer join a group of so many members."""
    costs: list[Join] = []

    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": PARTITIONS})
        for broker_id in range(2, BROKERS + 1):
            await world.start_broker(broker_id)
        before = [world.member(f"c{index:02d}", rebalance_max_retries=20) for index in range(members)]
        await asyncio.gather(*(member.read({"clicks": 1}) for member in before))
        await world.until_owners(expected_owners(members))
        for member in before:
            member.tree.counts.clear()
        starts = [member.fetchers.starts for member in before]
        released: set[str] = set()

        def note(zxid: int, session: int, operations: list[Operation]) -> None:
            released.update(each.path for each in operations if isinstance(each, Delete))

        world.server.on_commit = note
        await world.member(f"c{members:02d}", rebalance_max_retries=20).read({"clicks": 1})
        await world.until_owners(expected_owners(members + 1))
        rebalanced = sum(member.fetchers.starts > start for member, start in zip(before, starts, strict=True))
        operations = sum((member.tree.counts for member in world.members), Counter[str]())
        owners = [path for path in released if "/owners/" in path]
        costs.append(Join(members, rebalanced, len(owners), operations))

    in_world(story)
    return costs[0]


def test_everybody_rebalances_when_one_consumer_joins() -> None:
    cost = join(8)
    assert cost.rebalanced == 8
    assert cost.released == PARTITIONS  # although seven of 64 partitions move to the new consumer


def test_the_reads_grow_with_the_square_of_the_group() -> None:
    small, large = join(8), join(32)
    assert large.reads > 6 * small.reads  # of four times as many members


def test_the_documentation_has_the_measured_numbers() -> None:
    page = (PROJECT / "docs" / "zookeeper-consumer.md").read_text()
    rows = [join(members).row() for members in SIZES]
    assert [row for row in rows if row not in page] == []
