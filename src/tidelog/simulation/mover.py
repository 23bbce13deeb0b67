"""A client that moves replicas and leaders: reassignments, cancellations and preferred elections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tidelog import AsyncAdmin
from tidelog.errors import KafkaError
from tidelog.protocol.election_type import ElectionType
from tidelog.simulation.actors import ANSWERS, RECONNECT, Orders
from tidelog.simulation.process import Process

Partition = tuple[str, int]


@dataclass(slots=True)
class Mover:
    """A partition keeps at least two replicas. A new reassignment may replace one that is under way."""

    bootstrap: str
    brokers: Sequence[int]
    replicas: int
    orders: Orders
    note: Callable[[str], None]

    async def main(self, process: Process) -> None:
        rng = process.rng
        async with AsyncAdmin(
            {"bootstrap.servers": self.bootstrap, "default.api.timeout.ms": 6000, **RECONNECT, **ANSWERS}
        ) as admin:
            while not self.orders.stopping:
                await asyncio.sleep(rng.uniform(0.1, 2.0))
                try:
                    await self._move(admin, rng)
                except KafkaError as error:
                    self.note(f"{type(error).__name__}: {error}")

    async def _move(self, admin: AsyncAdmin, rng: random.Random) -> None:
        described = await admin.describe_topics(list(await admin.list_topics(list_internal=True)))
        partitions = [
            (name, part.partition) for name, topic in described.items() for part in topic.partitions
        ]
        chosen = rng.sample(partitions, min(len(partitions), rng.randint(1, 3)))
        kind = rng.random()
        if kind < 0.55:
            for partition in chosen:
                replicas = rng.sample(self.brokers, rng.randint(min(2, self.replicas), self.replicas))
                moved = admin.alter_partition_reassignments({partition: replicas}, partial=True)
                await self._try(f"move {partition[0]}-{partition[1]} to {replicas}", moved)
        elif kind < 0.7:
            for partition in await admin.list_partition_reassignments():
                cancelled = admin.alter_partition_reassignments({partition: None}, partial=True)
                await self._try(f"cancel the move of {partition[0]}-{partition[1]}", cancelled)
        else:
            wanted = None if rng.random() < 0.5 else chosen
            elected = admin.elect_leaders(ElectionType.PREFERRED, wanted, partial=True)
            await self._try(f"elect the preferred leaders of {wanted or 'all partitions'}", elected)

    async def _try(self, what: str, call: Awaitable[object]) -> None:
        self.note(f"{what}: {await call}")
