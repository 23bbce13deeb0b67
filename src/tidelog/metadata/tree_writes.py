"""Writes many nodes in a pipeline of multis, and finds out the outcome of a write whose answer was lost.

A Step has the operations that belong together. Steps share multis of limited size. A failed step does not
prevent the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelog.metadata import paths
from tidelog.metadata.async_tree import AsyncTree, ConnectionLost
from tidelog.metadata.operations import ControllerEpoch, Fenced
from tidelog.metadata.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    DataTooLarge,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
    Stat,
    TreeError,
)

K = TypeVar("K")

MAX_MULTI_BYTES = 512 * 1024
"""Half of ZooKeeper's jute.maxbuffer: an encoded operation is longer than its path and data."""

MAX_MULTI_OPERATIONS = 300
"""The steps of a multi of this size are made within a millisecond, and encoded within another one."""

OPERATION_OVERHEAD = 64
"""Bytes of an encoded operation beside its path and data, at most: header, lengths, flags, access list."""

REFUSALS = (NodeExists, NoNode, BadVersion, NotEmpty, DataTooLarge)
"""Errors of one operation. Others concern the tree as a whole."""


@dataclass(slots=True)
class Step(Generic[K]):
    """Operations that are made together or not at all.

    The node of the operation `proof` shows whether they were made. So no other writer may write the same data
    to it.
    """

    key: K
    operations: Sequence[Operation]
    proof: Operation

    @classmethod
    def of(cls, key: K, operation: Operation) -> Step[K]:
        return cls(key, (operation,), operation)

    @property
    def size(self) -> int:
        return sum(_size(operation) for operation in self.operations)


def _size(operation: Operation) -> int:
    data = len(operation.data) if isinstance(operation, (Create, SetData)) else 0
    return len(operation.path) + data + OPERATION_OVERHEAD


def grouped(steps: Iterable[Step[K]]) -> Iterator[list[Step[K]]]:
    """The steps in groups that fit into one multi."""
    group: list[Step[K]] = []
    size = operations = 0
    for step in steps:
        grown = size + step.size
        if group and (grown > MAX_MULTI_BYTES or operations + len(step.operations) > MAX_MULTI_OPERATIONS):
            yield group
            group, grown, operations = [], step.size, 0
        group.append(step)
        size = grown
        operations += len(step.operations)
    if group:
        yield group


async def write_steps(
    tree: AsyncTree, steps: Iterable[Step[K]], epoch: ControllerEpoch | None = None
) -> dict[K, TreeError]:
    """Make all steps; returns the errors of the refused ones.

    A generator of steps is consumed group by group, so that other tasks run in between.

    Each multi checks the controller epoch, if one is given. Raises Fenced if another controller was elected,
    and SessionExpired if the session ends; some steps may have been made then.
    """
    groups: list[asyncio.Task[dict[K, TreeError]]] = []
    for group in grouped(steps):
        groups.append(_started(_write_group(tree, group, epoch)))
        await asyncio.sleep(0)  # the multi is encoded and sent here
        await asyncio.sleep(0)  # the steps of the next one are made in another turn
    return await _merged(groups)


def _started(writes: Coroutine[None, None, dict[K, TreeError]]) -> asyncio.Task[dict[K, TreeError]]:
    """Start a task whose failure may stay unseen, because a cancelled caller does not wait for its writes."""
    task = asyncio.ensure_future(writes)
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    return task


async def _merged(groups: Sequence[asyncio.Task[dict[K, TreeError]]]) -> dict[K, TreeError]:
    # All groups end before the first error is raised, so that none writes after the caller has given up.
    if not groups:
        return {}
    await asyncio.wait(groups)
    refused: dict[K, TreeError] = {}
    failures = [failure for group in groups if (failure := group.exception()) is not None]
    fenced = next((failure for failure in failures if isinstance(failure, Fenced)), None)
    if failures:
        raise fenced or failures[0]
    for group in groups:
        refused.update(group.result())
    return refused


async def _write_group(
    tree: AsyncTree, steps: Sequence[Step[K]], epoch: ControllerEpoch | None, *, unknown: bool = False
) -> dict[K, TreeError]:
    """Write one group. `unknown` means that an earlier attempt may have succeeded."""
    while steps:
        try:
            await _multi(tree, steps, epoch)
        except ConnectionLost:
            unknown = True
            steps = await _not_made(tree, steps)
            continue
        except REFUSALS as error:
            if len(steps) > 1:
                alone = [_write_group(tree, [step], epoch, unknown=unknown) for step in steps]
                return await _merged([_started(step) for step in alone])
            # A read may lag behind the lost write; a refused write does not.
            made = unknown and not await _not_made(tree, steps)
            return {} if made else {steps[0].key: error}
        return {}
    return {}


async def _multi(tree: AsyncTree, steps: Sequence[Step[K]], epoch: ControllerEpoch | None) -> None:
    operations = [operation for step in steps for operation in step.operations]
    try:
        await tree.multi(operations if epoch is None else [epoch.check, *operations])
    except (BadVersion, NoNode) as error:
        if epoch is not None and error.path == paths.CONTROLLER_EPOCH:
            raise Fenced from error
        raise


async def _not_made(tree: AsyncTree, steps: Sequence[Step[K]]) -> list[Step[K]]:
    found = await tree.get_all([step.proof.path for step in steps])
    return [step for step in steps if not _is_made(step.proof, found)]


def _is_made(operation: Operation, found: Mapping[str, tuple[bytes, Stat]]) -> bool:
    node = found.get(operation.path)
    if isinstance(operation, Delete):
        return node is None
    if node is None or isinstance(operation, Check):
        return False
    data, stat = node
    if isinstance(operation, SetData) and operation.version != ANY_VERSION:
        return data == operation.data and stat.version == operation.version + 1
    return data == operation.data
