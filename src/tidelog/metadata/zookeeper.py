"""ZooKeeperTree: the tree in a ZooKeeper ensemble, through kazoo.

kazoo is imported with the first connection: a broker without ZooKeeper does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tidelog.metadata.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Result,
    SetData,
    Stat,
    TreeError,
    TreeUnavailable,
    Watch,
    WatchEvent,
    check_path,
    ensure_path,
    parent_of,
)

if TYPE_CHECKING:
    from kazoo.client import KazooClient, TransactionRequest
    from kazoo.protocol.states import WatchedEvent, ZnodeStat

T = TypeVar("T")


class ZooKeeperTree:
    """A Tree in the ensemble at `connect` ("host:port,host:port/chroot"); creates a missing chroot."""

    def __init__(self, connect: str, *, session_timeout: float = 18.0, connect_timeout: float = 18.0) -> None:
        """Connect; TreeUnavailable without an answer within `connect_timeout` seconds."""
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import KazooTimeoutError

        self.connect = connect
        hosts, slash, chroot = connect.partition("/")
        self._client: KazooClient = KazooClient(hosts=hosts, timeout=session_timeout)
        try:
            self._client.start(timeout=connect_timeout)
        except KazooTimeoutError as error:
            self.close()
            reason = f"no ZooKeeper answered at {hosts} within {connect_timeout:g} s"
            raise TreeUnavailable("/", reason) from error
        if chroot:
            self._call(connect, lambda: self._client.ensure_path(slash + chroot))
            self._client.chroot = slash + chroot

    def __enter__(self) -> ZooKeeperTree:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        check_path(path)
        if make_parents:
            ensure_path(self, parent_of(path))

        def made() -> str:
            return str(self._client.create(path, data, ephemeral=ephemeral, sequence=sequential))

        return self._call(path, made)

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        data, stat = self._call(path, lambda: self._client.get(path, watch=_watching(watch)))
        return data or b"", _stat(stat)

    def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        stat = self._call(path, lambda: self._client.exists(path, watch=_watching(watch)))
        return None if stat is None else _stat(stat)

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        names: list[str] = self._call(path, lambda: self._client.get_children(path, watch=_watching(watch)))
        return sorted(names)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return _stat(self._call(path, lambda: self._client.set(path, data, version)))

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._call(path, lambda: self._client.delete(path, version))

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        from kazoo.exceptions import RolledBackError, RuntimeInconsistency

        transaction = self._client.transaction()
        for operation in operations:
            check_path(operation.path)
            _add(transaction, operation)
        results: list[object] = self._call("/", transaction.commit) if operations else []
        for operation, result in zip(operations, results, strict=True):
            # Operations before the failed one were rolled back, those after it were not tried.
            if isinstance(result, Exception) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                raise _translated(operation.path, result) from result
        return [_result(operation, result) for operation, result in zip(operations, results, strict=True)]

    def _call(self, path: str, call: Callable[[], T]) -> T:
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            return call()
        except (KazooException, KazooTimeoutError) as error:
            raise _translated(path, error) from error


def _translated(path: str, error: Exception) -> TreeError:
    from kazoo import exceptions

    known: dict[type[Exception], type[TreeError]] = {
        exceptions.NoNodeError: NoNode,
        exceptions.NodeExistsError: NodeExists,
        exceptions.BadVersionError: BadVersion,
        exceptions.NotEmptyError: NotEmpty,
        exceptions.NoChildrenForEphemeralsError: NoChildrenForEphemerals,
    }
    for kind, ours in known.items():
        if isinstance(error, kind):
            return ours(path)
    return TreeUnavailable(path, f"{path}: ZooKeeper failed: {type(error).__name__} {error}".rstrip())


def _add(transaction: TransactionRequest, operation: Operation) -> None:
    match operation:
        case Create(path, data, ephemeral, sequential):
            transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
        case SetData(path, data, version):
            transaction.set_data(path, data, version)
        case Delete(path, version):
            transaction.delete(path, version)
        case Check(path, version):
            transaction.check(path, version)


def _result(operation: Operation, result: object) -> Result:
    match operation:
        case Create():
            return str(result)
        case SetData():
            return _stat(result)
        case _:
            return None


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(
        stat.czxid,
        stat.mzxid,
        stat.ctime,
        stat.mtime,
        stat.version,
        stat.cversion,
        stat.ephemeralOwner,
        stat.numChildren,
    )


def _watching(watch: Watch | None) -> Callable[[WatchedEvent], None] | None:
    if watch is None:
        return None

    def on_event(event: WatchedEvent) -> None:
        kind = getattr(EventType, {"CHILD": "CHILDREN"}.get(event.type, event.type), None)
        # Events without a node are about the session, not about the watched node.
        if kind is not None:
            watch(WatchEvent(kind, event.path))

    return on_event
