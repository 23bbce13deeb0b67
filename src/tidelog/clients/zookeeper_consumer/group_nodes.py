"""The nodes of a group below /consumers/<group>: its members, the owners of partitions, and offsets.

A write whose answer was lost is resolved by reading the node back. Every call raises SessionExpired when the
session ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

from tidelog.clients.zookeeper_consumer.topic_count import ConsumerThreadId
from tidelog.metadata import nodes, paths
from tidelog.metadata.async_tree import AsyncTree, ConnectionLost, ensure_path
from tidelog.metadata.operations import decode
from tidelog.metadata.registration import create_ephemeral
from tidelog.metadata.tree import NodeExists, NoNode, Watch, child_of, parent_of
from tidelog.partitions import TopicPartition


class GroupNodes:
    def __init__(self, tree: AsyncTree, group: str) -> None:
        self._tree = tree
        self._group = group
        self._ids = parent_of(paths.consumer_id(group, "any"))
        self._sessions: set[int] = set()
        self._uncertain: set[TopicPartition] = set()
        """Partitions whose claim got no answer: this session may own them."""

    # --- members

    async def register(self, consumer: str, node: nodes.ConsumerNode, *, wait_seconds: float) -> None:
        """Create the node of a member. NodeExists after `wait_seconds` while another session has the id."""
        await ensure_path(self._tree, self._ids)
        earlier = self._sessions - {self._tree.session_id}
        path = paths.consumer_id(self._group, consumer)
        stat = await create_ephemeral(
            self._tree, path, node.encode(), wait_seconds=wait_seconds, earlier_sessions=earlier
        )
        self._sessions.add(stat.ephemeral_owner)

    async def members(self, watch: Watch) -> dict[str, nodes.ConsumerNode]:
        """The members by id. The watch is called when a member joins or leaves."""
        by_path = {child_of(self._ids, name): name for name in await self._tree.children(self._ids, watch)}
        found = await self._tree.get_all(by_path)
        return {
            by_path[path]: decode(path, nodes.ConsumerNode.decode, data) for path, (data, _) in found.items()
        }

    # --- owners

    async def claim(self, partitions: Mapping[TopicPartition, ConsumerThreadId]) -> bool:
        """Become the owner of all partitions, or of none: False if another member owns one of them."""
        claims = list(partitions.items())
        outcomes = await asyncio.gather(
            *(self._claim(partition, thread) for partition, thread in claims), return_exceptions=True
        )
        if all(outcome is True for outcome in outcomes):
            return True
        made = [claim[0] for claim, outcome in zip(claims, outcomes, strict=True) if outcome is True]
        await self.release(made)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return False

    async def _claim(self, partition: TopicPartition, thread: ConsumerThreadId) -> bool:
        path, data = paths.consumer_owner(self._group, *partition), str(thread).encode()
        while True:
            try:
                await self._tree.create(path, data, ephemeral=True)
                return True
            except NoNode:
                await ensure_path(self._tree, parent_of(path))
            except NodeExists:
                return await self._owns(path, data)
            except ConnectionLost:
                self._uncertain.add(partition)
                return await self._owns(path, data)

    async def _owns(self, path: str, data: bytes) -> bool:
        try:
            found, stat = await self._tree.get(path)
        except NoNode:
            return False
        return found == data and stat.ephemeral_owner == self._tree.session_id

    async def release(self, partitions: Collection[TopicPartition]) -> None:
        """Delete the nodes of partitions that this session owns, and those that it may own."""
        uncertain, self._uncertain = self._uncertain, set()
        await asyncio.gather(
            *(self._release(partition) for partition in partitions),
            *(self._release_own(partition) for partition in uncertain - set(partitions)),
        )

    async def _release(self, partition: TopicPartition) -> None:
        try:
            await self._tree.delete(paths.consumer_owner(self._group, *partition))
        except NoNode:
            pass
        except ConnectionLost:
            # If the node was deleted, another member may have created it again.
            await self._release_own(partition)

    async def _release_own(self, partition: TopicPartition) -> None:
        """Delete the node of a partition if this session created it."""
        path = paths.consumer_owner(self._group, *partition)
        while True:
            stat = await self._tree.exists(path)
            if stat is None or stat.ephemeral_owner != self._tree.session_id:
                return
            try:
                await self._tree.delete(path)
                return
            except NoNode:
                return
            except ConnectionLost:
                continue

    def forget_session(self) -> None:
        """The session has expired, and its owner nodes with it."""
        self._uncertain.clear()

    # --- offsets

    async def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets. Partitions without one are left out."""
        by_path = {paths.consumer_offset(self._group, *partition): partition for partition in partitions}
        found = await self._tree.get_all(by_path)
        return {by_path[path]: decode(path, nodes.decode_number, data) for path, (data, _) in found.items()}

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write offsets. Nothing checks that this consumer still owns the partitions."""
        await asyncio.gather(*(self._commit(partition, offset) for partition, offset in offsets.items()))

    async def _commit(self, partition: TopicPartition, offset: int) -> None:
        path, data = paths.consumer_offset(self._group, *partition), nodes.encode_number(offset)
        while True:
            try:
                await self._tree.set(path, data)
                return
            except NoNode:
                await ensure_path(self._tree, parent_of(path))
                if await self._create_offset(path, data):
                    return
            except ConnectionLost:
                continue  # the same offset can be written twice

    async def _create_offset(self, path: str, data: bytes) -> bool:
        try:
            await self._tree.create(path, data)
        except (NodeExists, ConnectionLost):
            return False
        return True
