"""The server's side of ZooKeeper's protocol: reads requests and writes answers. `jute.py` is the client's."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from tidelog.metadata.tree import (
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
)
from tidelog.metadata.zookeeper.jute import EPHEMERAL, SEQUENTIAL, ErrorCode, Op, Xid

_INT = Struct(">i")
_LONG = Struct(">q")
_STAT = Struct(">qqqqiiiqiiq")
_REPLY = Struct(">iqi")
_MULTI = Struct(">i?i")

_CODES: dict[type[TreeError], ErrorCode] = {
    NoNode: ErrorCode.NO_NODE,
    NodeExists: ErrorCode.NODE_EXISTS,
    BadVersion: ErrorCode.BAD_VERSION,
    NotEmpty: ErrorCode.NOT_EMPTY,
    NoChildrenForEphemerals: ErrorCode.NO_CHILDREN_FOR_EPHEMERALS,
}
_EVENTS = {EventType.CREATED: 1, EventType.DELETED: 2, EventType.CHANGED: 3, EventType.CHILDREN: 4}
_CONNECTED = 3


class Reader:
    """Reads the fields of one request, one after the other."""

    __slots__ = ("_at", "_frame")

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._at = 0

    def integer(self) -> int:
        (value,) = _INT.unpack_from(self._frame, self._at)
        self._at += 4
        return int(value)

    def long(self) -> int:
        (value,) = _LONG.unpack_from(self._frame, self._at)
        self._at += 8
        return int(value)

    def flag(self) -> bool:
        self._at += 1
        return self._frame[self._at - 1] != 0

    def buffer(self) -> bytes:
        size = max(0, self.integer())
        self._at += size
        return self._frame[self._at - size : self._at]

    def text(self) -> str:
        return self.buffer().decode()

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.integer())]

    def operation(self, op: int) -> Operation:
        path = self.text()
        if op == Op.CREATE:
            data = self.buffer()
            for _ in range(self.integer()):  # the simulation has no ACLs
                self.integer()
                self.text()
                self.text()
            flags = self.integer()
            return Create(path, data, bool(flags & EPHEMERAL), bool(flags & SEQUENTIAL))
        if op == Op.SET_DATA:
            return SetData(path, self.buffer(), self.integer())
        if op == Op.DELETE:
            return Delete(path, self.integer())
        if op == Op.CHECK:
            return Check(path, self.integer())
        raise ValueError(f"the simulated ZooKeeper has no operation {op}")

    def operations(self) -> list[Operation]:
        found: list[Operation] = []
        while True:
            op, done, _ = self.integer(), self.flag(), self.integer()
            if done:
                return found
            found.append(self.operation(op))


class ConnectRequest(NamedTuple):
    last_zxid: int
    timeout_ms: int
    session_id: int
    password: bytes


def read_connect_request(frame: bytes) -> ConnectRequest:
    reader = Reader(frame)
    reader.integer()  # the version of the protocol is always 0
    return ConnectRequest(reader.long(), reader.integer(), reader.long(), reader.buffer())


def connect_response(timeout_ms: int, session_id: int, password: bytes) -> bytes:
    head = Struct(">iiq").pack(0, timeout_ms, session_id)
    return _framed(head + _INT.pack(len(password)) + password + b"\0")


def reply(xid: int, zxid: int, code: int = ErrorCode.OK, body: bytes = b"") -> bytes:
    return _framed(_REPLY.pack(xid, zxid, code) + body)


def notification(kind: EventType, path: str) -> bytes:
    body = _INT.pack(_EVENTS[kind]) + _INT.pack(_CONNECTED) + _text(path)
    return _framed(_REPLY.pack(Xid.NOTIFICATION, -1, 0) + body)


def code_of(error: TreeError) -> int:
    return _CODES[type(error)]


def result_body(result: Result) -> bytes:
    match result:
        case str():
            return _text(result)
        case Stat():
            return stat_body(result)
        case _:
            return b""


def stat_body(stat: Stat) -> bytes:
    czxid, mzxid, ctime, mtime, version, cversion, owner, children = stat
    # The fields that clients of ours do not read are 0.
    return _STAT.pack(czxid, mzxid, ctime, mtime, version, cversion, 0, owner, 0, children, 0)


def data_body(data: bytes, stat: Stat) -> bytes:
    return _INT.pack(len(data)) + data + stat_body(stat)


def children_body(names: Sequence[str]) -> bytes:
    return _INT.pack(len(names)) + b"".join(_text(name) for name in names)


def multi_body(operations: Sequence[Operation], results: Sequence[Result]) -> bytes:
    ops = {Create: Op.CREATE, SetData: Op.SET_DATA, Delete: Op.DELETE, Check: Op.CHECK}
    parts = [
        _MULTI.pack(ops[type(operation)], False, 0) + result_body(result)
        for operation, result in zip(operations, results, strict=True)
    ]
    return b"".join(parts) + _MULTI.pack(-1, True, -1)


def failed_multi_body(count: int, failed: int, code: int) -> bytes:
    """Operations before the failed one have code 0, those after it were not tried."""
    codes = [0] * failed + [code] + [int(ErrorCode.RUNTIME_INCONSISTENCY)] * (count - failed - 1)
    parts = [_MULTI.pack(Op.ERROR, False, each) + _INT.pack(each) for each in codes]
    return b"".join(parts) + _MULTI.pack(-1, True, -1)


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT.pack(len(data)) + data


def _framed(body: bytes) -> bytes:
    return _INT.pack(len(body)) + body
