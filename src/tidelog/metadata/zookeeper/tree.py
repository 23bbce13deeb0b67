"""ZooKeeperTree: the AsyncTree in a ZooKeeper ensemble."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from tidelog.metadata.async_tree import SessionListener, ensure_path
from tidelog.metadata.tree import (
    ANY_VERSION,
    Create,
    Delete,
    Operation,
    Result,
    SetData,
    Stat,
    TreeError,
    Watch,
    check_path,
)
from tidelog.metadata.zookeeper import jute
from tidelog.metadata.zookeeper.acl import Acl
from tidelog.metadata.zookeeper.connect_string import ConnectString
from tidelog.metadata.zookeeper.connection import Connection, OpenConnection, Request
from tidelog.metadata.zookeeper.jute import ErrorCode
from tidelog.metadata.zookeeper.session import Session
from tidelog.metadata.zookeeper.settings import ZooKeeperSettings

T = TypeVar("T")


class ZooKeeperTree:
    """`tree = await ZooKeeperTree.connect("host:port,host:port/chroot", rng=random.Random())`."""

    def __init__(
        self,
        connect: ConnectString,
        settings: ZooKeeperSettings,
        rng: random.Random,
        open_connection: OpenConnection = Connection.open,
    ) -> None:
        """Without a connection yet: see `connect`."""
        self._chroot = connect.chroot
        self._settings = settings
        self._session = Session(connect, settings, rng, open_connection)
        self._watches = self._session.watches
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(
        cls,
        connect: str,
        settings: ZooKeeperSettings | None = None,
        *,
        rng: random.Random,
        create_chroot: bool = True,
    ) -> ZooKeeperTree:
        """Connect, and create a missing chroot unless `create_chroot` is False.

        Raises TreeUnavailable if no server answers within `connect_timeout`, AuthenticationFailed, and
        ValueError if `connect` is malformed.
        """
        tree = cls(ConnectString.parse(connect), settings or ZooKeeperSettings(), rng)
        await tree._start(create_chroot=create_chroot)
        return tree

    async def _start(self, *, create_chroot: bool = True) -> None:
        chroot, self._chroot = self._chroot, ""
        try:
            await self._session.start()
            if create_chroot:
                await ensure_path(self, chroot or "/")
        except BaseException:
            await self.close()
            raise
        self._chroot = chroot

    async def __aenter__(self) -> ZooKeeperTree:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def session_password(self) -> bytes:
        """A client with the session's id and this password can resume and close the session."""
        return self._session.password

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._session.is_closed

    @property
    def session_timeout(self) -> float:
        """The session time-out in seconds, as ZooKeeper chose it."""
        return self._session.timeout

    def listen(self, listener: SessionListener) -> None:
        self._session.listen(listener)

    def measure(self, latency: Callable[[float], None]) -> None:
        """Call `latency` with the seconds that each request takes."""
        self._session.latency = latency

    async def close(self) -> None:
        await self._session.close()

    # --- changes

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        return await self._change(Create(path, data, ephemeral, sequential), self._read_path)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return await self._change(SetData(path, data, version), jute.read_stat)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._change(Delete(path, version), _nothing)

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        if not operations:
            return []
        encoded = [(operation, self._path_of(operation), self._acl_of(operation)) for operation in operations]
        results = await self._call(
            operations[0].path,
            jute.multi_request(encoded),
            lambda frame: jute.read_multi(frame, operations),
            repeatable=False,
        )
        return [self._below(result) if isinstance(result, str) else result for result in results]

    async def _change(self, operation: Operation, decode: Callable[[bytes], T]) -> T:
        payload = jute.operation_request(operation, self._path_of(operation), self._acl_of(operation))
        return await self._call(operation.path, payload, decode, repeatable=False)

    def _path_of(self, operation: Operation) -> str:
        if isinstance(operation, Delete) and operation.path == "/":
            raise ValueError("the root of the tree cannot be deleted")
        return self._full(operation.path)

    def _acl_of(self, operation: Operation) -> Sequence[Acl]:
        return self._settings.acl(operation.path) if isinstance(operation, Create) else ()

    # --- reads

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        full = self._full(path)
        payload = jute.get_request(full, watch is not None)

        def decode(frame: bytes) -> tuple[bytes, Stat]:
            found = jute.read_data_and_stat(frame)
            if watch is not None:
                self._watches.add_data(full, watch)
            return found

        return await self._call(path, payload, decode, repeatable=True)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        full = self._full(path)
        future: asyncio.Future[Stat | None] = self._loop.create_future()

        def answer(code: int, frame: bytes) -> None:
            if code not in (ErrorCode.OK, ErrorCode.NO_NODE):
                future.set_exception(jute.error_of(code, path))
                return
            stat = jute.read_stat(frame) if code == ErrorCode.OK else None
            if watch is not None and stat is not None:
                self._watches.add_data(full, watch)
            elif watch is not None:
                self._watches.add_exist(full, watch)
            future.set_result(stat)

        self._session.submit(
            Request(path, jute.exists_request(full, watch is not None), True, future, answer)
        )
        return await future

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        full = self._full(path)
        payload = jute.children_request(full, watch is not None)

        def decode(frame: bytes) -> list[str]:
            found = jute.read_children(frame)
            if watch is not None:
                self._watches.add_child(full, watch)
            return found

        return await self._call(path, payload, decode, repeatable=True)

    async def get_all(self, paths: Iterable[str]) -> dict[str, tuple[bytes, Stat]]:
        return await _Pipeline(self, paths, jute.get_request, jute.read_data_and_stat).read()

    async def children_of_all(self, paths: Iterable[str]) -> dict[str, list[str]]:
        return await _Pipeline(self, paths, jute.children_request, jute.read_children).read()

    # --- common parts

    async def _call(
        self, path: str, payload: bytes, decode: Callable[[bytes], T], *, repeatable: bool
    ) -> T:
        limit = self._settings.max_buffer
        if len(payload) + 4 > limit:
            raise jute.too_large(path, len(payload) + 4, limit)
        future: asyncio.Future[T] = self._loop.create_future()

        def answer(code: int, frame: bytes) -> None:
            if code:
                future.set_exception(jute.error_of(code, path))
                return
            try:
                result = decode(frame)
            except TreeError as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._session.submit(Request(path, payload, repeatable, future, answer))
        return await future

    def _full(self, path: str) -> str:
        """The path in ZooKeeper, with the chroot."""
        check_path(path)
        if not self._chroot:
            return path
        return self._chroot if path == "/" else self._chroot + path

    def _below(self, path: str) -> str:
        return path[len(self._chroot) :] or "/"

    def _read_path(self, frame: bytes) -> str:
        return self._below(jute.read_path(frame))


class _Pipeline(Generic[T]):
    """Reads many nodes, with a limited number of requests in flight."""

    def __init__(
        self,
        tree: ZooKeeperTree,
        paths: Iterable[str],
        encode: Callable[[str, bool], bytes],
        decode: Callable[[bytes], T],
    ) -> None:
        self._tree = tree
        self._paths = iter([(path, tree._full(path)) for path in dict.fromkeys(paths)])
        self._encode = encode
        self._decode = decode
        self._found: dict[str, T | None] = {}
        self._unanswered = 0
        self._future: asyncio.Future[None] = tree._loop.create_future()

    async def read(self) -> dict[str, T]:
        """The values by path, in the order of the paths. Missing nodes are left out."""
        for _ in range(self._tree._settings.max_in_flight):
            if not self._send():
                break
        if self._unanswered:
            await self._future
        return {path: value for path, value in self._found.items() if value is not None}

    def _send(self) -> bool:
        following = next(self._paths, None)
        if following is None:
            return False
        path, full = following
        self._found[path] = None
        self._unanswered += 1

        def answer(code: int, frame: bytes) -> None:
            self._unanswered -= 1
            if code == ErrorCode.OK:
                self._found[path] = self._decode(frame)
            elif code != ErrorCode.NO_NODE:
                self._future.set_exception(jute.error_of(code, path))
                return
            if not self._send() and not self._unanswered:
                self._future.set_result(None)

        request = Request(path, self._encode(full, False), True, self._future, answer)
        self._tree._session.submit(request)
        return True


def _nothing(frame: bytes) -> None:
    """The answer to a Delete has no record."""
