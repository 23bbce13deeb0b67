"""The implementations of AsyncTree, opened in the same way for the same tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from tests.support.virtual_loop import VirtualLoop
from tidelog.metadata.async_tree import AsyncTree
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.metadata.threaded_tree import ThreadedTree
from tidelog.metadata.zookeeper import ZooKeeperTree
from tidelog.network.loop import BrokerLoop

T = TypeVar("T")


class Backend(Protocol):
    """Opens sessions on one store."""

    def loop(self) -> asyncio.AbstractEventLoop: ...

    async def open(self) -> AsyncTree: ...


class ZooKeeperBackend:
    """Sessions in a chroot of a real ZooKeeper."""

    def __init__(self, connect: str) -> None:
        self.connect = connect

    def loop(self) -> asyncio.AbstractEventLoop:
        return BrokerLoop()

    async def open(self) -> AsyncTree:
        return await ZooKeeperTree.connect(self.connect, rng=random.Random(1))


class ThreadedBackend:
    """The embedded tree, which has one session at a time."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE_NAME

    def loop(self) -> asyncio.AbstractEventLoop:
        return BrokerLoop()

    async def open(self) -> AsyncTree:
        return ThreadedTree(EmbeddedTree(self.file))


class SimulatedBackend:
    """Sessions on a simulated ZooKeeper with latency, on virtual time."""

    def __init__(self) -> None:
        self._server: SimulatedZooKeeper | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop()

    async def open(self) -> AsyncTree:
        if self._server is None:
            self._server = SimulatedZooKeeper(asyncio.get_running_loop(), random.Random(2))
        return await SimulatedTree.open(self._server, "client", rng=random.Random(3))


def run(loop: Callable[[], asyncio.AbstractEventLoop], story: Callable[[], Awaitable[T]]) -> T:
    """Run a story on a new loop. Exceptions in callbacks fail the test, too."""
    unhandled: list[str] = []

    async def main() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(str(context)))
        return await story()

    with asyncio.Runner(loop_factory=loop) as runner:
        result = runner.run(main())
    assert not unhandled, unhandled
    return result


def with_trees(backend: Backend, story: Callable[..., Awaitable[T]], sessions: int = 1) -> T:
    """Run a story on as many sessions as it has arguments."""

    async def on_trees() -> T:
        trees = [await backend.open() for _ in range(sessions)]
        try:
            return await story(*trees)
        finally:
            for tree in trees:
                await tree.close()

    return run(backend.loop, on_trees)
