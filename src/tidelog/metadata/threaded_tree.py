"""ThreadedTree: an AsyncTree over a blocking tree, which runs on one thread.

The calls run one after the other, in the order of their start. The session of an embedded tree lasts until it
is closed, so there are no session events.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from tidelog.metadata.async_tree import SessionListener
from tidelog.metadata.tree import (
    ANY_VERSION,
    NoNode,
    Operation,
    Result,
    Stat,
    Tree,
    TreeUnavailable,
    Watch,
    WatchEvent,
    check_path,
)
from tidelog.metadata.watches import Watches

T = TypeVar("T")


class BlockingTree(Tree, Protocol):
    session: int


class ThreadedTree:
    """Create it on the running loop. `close` also closes the blocking tree, unless this one is `shared`."""

    def __init__(self, blocking: BlockingTree, *, shared: bool = False) -> None:
        self._blocking = blocking
        self._is_shared = shared
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, "tidelog-tree")
        self._watches = Watches()
        self._closed = False

    @property
    def session_id(self) -> int:
        return self._blocking.session

    @property
    def session_timeout(self) -> float:
        return math.inf

    def listen(self, listener: SessionListener) -> None:
        """Ignore the listener: the session never loses its connection and never expires."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        return await self._call(
            path,
            lambda: self._blocking.create(path, data, ephemeral=ephemeral, sequential=sequential),
        )

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return await self._call(path, lambda: self._blocking.set(path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._call(path, lambda: self._blocking.delete(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        if not operations:
            return []
        return await self._call(operations[0].path, lambda: self._blocking.multi(operations))

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        if watch is None:
            return await self._call(path, lambda: self._blocking.get(path))
        return await self._call(
            path,
            lambda: self._blocking.get(path, self._on_event),
            lambda _: self._watches.add_data(path, watch),
        )

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        if watch is None:
            return await self._call(path, lambda: self._blocking.exists(path))
        return await self._call(
            path,
            lambda: self._blocking.exists(path, self._on_event),
            lambda _: self._watches.add_exist(path, watch),
        )

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        if watch is None:
            return await self._call(path, lambda: self._blocking.children(path))
        return await self._call(
            path,
            lambda: self._blocking.children(path, self._on_event),
            lambda _: self._watches.add_child(path, watch),
        )

    async def get_all(self, paths: Iterable[str]) -> dict[str, tuple[bytes, Stat]]:
        return await self._read_all(paths, self._blocking.get)

    async def children_of_all(self, paths: Iterable[str]) -> dict[str, list[str]]:
        return await self._read_all(paths, self._blocking.children)

    async def close(self) -> None:
        """Finish the calls that were started, and close the blocking tree."""
        if not self._closed:
            closing = self._call("/", (lambda: None) if self._is_shared else self._blocking.close)
            self._closed = True
            await closing
            self._worker.shutdown(wait=False)
            self._watches.clear()

    async def _read_all(self, paths: Iterable[str], read: Callable[[str], T]) -> dict[str, T]:
        wanted = list(dict.fromkeys(paths))
        for path in wanted:
            check_path(path)

        def read_all() -> dict[str, T]:
            found: dict[str, T] = {}
            for path in wanted:
                try:
                    found[path] = read(path)
                except NoNode:
                    continue
            return found

        return await self._call("/", read_all)

    def _call(
        self, path: str, work: Callable[[], T], then: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Do `work` on the worker. `then` runs on the loop, before any event of a later change."""
        check_path(path)
        future: asyncio.Future[T] = self._loop.create_future()
        if self._closed:
            future.set_exception(TreeUnavailable(path, f"{path}: the tree is closed"))
            return future

        def succeed(result: T) -> None:
            if not future.done():
                if then is not None:
                    then(result)
                future.set_result(result)

        def fail(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error)

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                self._loop.call_soon_threadsafe(fail, error)
            else:
                self._loop.call_soon_threadsafe(succeed, result)

        self._worker.submit(run)
        return future

    def _on_event(self, event: WatchEvent) -> None:
        """Called on the worker, before the call that made the change returns."""
        self._loop.call_soon_threadsafe(self._deliver, event)

    def _deliver(self, event: WatchEvent) -> None:
        for watch in self._watches.take(event.type, event.path):
            # Later, because the answer that set the watch must reach its caller first.
            self._loop.call_soon(watch, event)
