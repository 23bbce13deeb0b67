"""Jute: the encoding of ZooKeeper's requests and answers. Bytes in, values out; no sockets.

Numbers are big-endian. A buffer or string is a length of 4 bytes (-1 for null) and its bytes; a vector is a
count and its elements. A request is the operation's number and its record; the connection adds the xid. An
answer is a header (xid, zxid, error code) and a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from tidelog.metadata.tree import (
    BadVersion,
    Check,
    Create,
    DataTooLarge,
    Delete,
    EventType,
    NoAuth,
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
)
from tidelog.metadata.zookeeper.acl import Acl

_INT = Struct(">i")
_TWO_INTS = Struct(">ii")
_BOOL = Struct(">?")
_STAT = Struct(">qqqqiiiqiiq")
_CONNECT = Struct(">iqiq")
_CONNECTED = Struct(">iiq")
_REPLY = Struct(">iqi")
_MULTI = Struct(">i?i")

BODY = _REPLY.size
"""Where the record of an answer begins."""


class Op(IntEnum):
    """The numbers of the operations."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    PING = 11
    CHECK = 13
    MULTI = 14
    AUTH = 100
    SET_WATCHES = 101
    CLOSE_SESSION = -11
    ERROR = -1


class Xid(IntEnum):
    """The xids of answers that belong to no request of a caller."""

    NOTIFICATION = -1
    PING = -2
    AUTH = -4
    SET_WATCHES = -8


class ErrorCode(IntEnum):
    OK = 0
    RUNTIME_INCONSISTENCY = -2
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    AUTH_FAILED = -115
    SESSION_MOVED = -118


_ERRORS: dict[int, type[TreeError]] = {
    ErrorCode.NO_NODE: NoNode,
    ErrorCode.NO_AUTH: NoAuth,
    ErrorCode.BAD_VERSION: BadVersion,
    ErrorCode.NO_CHILDREN_FOR_EPHEMERALS: NoChildrenForEphemerals,
    ErrorCode.NODE_EXISTS: NodeExists,
    ErrorCode.NOT_EMPTY: NotEmpty,
}

_EVENT_TYPES = {1: EventType.CREATED, 2: EventType.DELETED, 3: EventType.CHANGED, 4: EventType.CHILDREN}

EPHEMERAL, SEQUENTIAL = 1, 2


class JuteError(ValueError):
    """The bytes are no valid message of ZooKeeper."""


def error_of(code: int, path: str) -> TreeError:
    """The error of an answer with this code."""
    known = _ERRORS.get(code)
    if known is None:
        return TreeUnavailable(path, f"{path}: ZooKeeper failed with code {code}")
    return known(path)


def too_large(path: str, size: int, limit: int) -> DataTooLarge:
    return DataTooLarge(
        path, f"{path}: the request has {size:,} bytes, ZooKeeper accepts {limit:,} (jute.maxbuffer)"
    )


# --- writing


def _buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _string(text: str) -> bytes:
    return _buffer(text.encode())


def _vector(elements: Sequence[bytes]) -> bytes:
    return _INT.pack(len(elements)) + b"".join(elements)


def _acl(entries: Iterable[Acl]) -> bytes:
    return _vector([_INT.pack(acl.permissions) + _string(acl.scheme) + _string(acl.id) for acl in entries])


def framed(body: bytes) -> bytes:
    return _INT.pack(len(body)) + body


def framed_request(xid: int, request: bytes) -> bytes:
    return _TWO_INTS.pack(len(request) + 4, xid) + request


def connect_request(last_zxid: int, timeout_ms: int, session_id: int, password: bytes) -> bytes:
    # The last field refuses servers that cannot write (ZooKeeper's read-only mode).
    return _CONNECT.pack(0, last_zxid, timeout_ms, session_id) + _buffer(password) + _BOOL.pack(False)


def auth_request(scheme: str, credentials: bytes) -> bytes:
    return _TWO_INTS.pack(Op.AUTH, 0) + _string(scheme) + _buffer(credentials)


def set_watches_request(
    last_zxid: int, data: Sequence[str], exist: Sequence[str], child: Sequence[str]
) -> bytes:
    parts = [Struct(">iq").pack(Op.SET_WATCHES, last_zxid)]
    parts += [_vector([_string(path) for path in paths]) for paths in (data, exist, child)]
    return b"".join(parts)


PING = _INT.pack(Op.PING)
CLOSE_SESSION = _INT.pack(Op.CLOSE_SESSION)
_GET, _EXISTS, _CHILDREN = (_INT.pack(op) for op in (Op.GET_DATA, Op.EXISTS, Op.GET_CHILDREN))


def get_request(path: str, watch: bool) -> bytes:
    return _GET + _string(path) + (b"\1" if watch else b"\0")


def exists_request(path: str, watch: bool) -> bytes:
    return _EXISTS + _string(path) + (b"\1" if watch else b"\0")


def children_request(path: str, watch: bool) -> bytes:
    return _CHILDREN + _string(path) + (b"\1" if watch else b"\0")


def operation_request(operation: Operation, path: str, acl: Iterable[Acl]) -> bytes:
    """The request of a change. `path` is the whole path, with the chroot; `acl` is used for a new node."""
    op, record = _operation(operation, path, acl)
    return _INT.pack(op) + record


def multi_request(operations: Iterable[tuple[Operation, str, Iterable[Acl]]]) -> bytes:
    parts = [_INT.pack(Op.MULTI)]
    for operation, path, acl in operations:
        op, record = _operation(operation, path, acl)
        parts += (_MULTI.pack(op, False, -1), record)
    parts.append(_MULTI.pack(-1, True, -1))
    return b"".join(parts)


def _operation(operation: Operation, path: str, acl: Iterable[Acl]) -> tuple[int, bytes]:
    match operation:
        case Create(_, data, ephemeral, sequential):
            flags = (EPHEMERAL if ephemeral else 0) | (SEQUENTIAL if sequential else 0)
            return Op.CREATE, _string(path) + _buffer(data) + _acl(acl) + _INT.pack(flags)
        case SetData(_, data, version):
            return Op.SET_DATA, _string(path) + _buffer(data) + _INT.pack(version)
        case Delete(_, version):
            return Op.DELETE, _string(path) + _INT.pack(version)
        case Check(_, version):
            return Op.CHECK, _string(path) + _INT.pack(version)


# --- reading: the frame of an answer begins with its header


class ConnectResponse(NamedTuple):
    timeout_ms: int
    session_id: int
    password: bytes


class Notification(NamedTuple):
    """`type` is None for an event of the session."""

    type: EventType | None
    path: str


def read_connect_response(frame: bytes) -> ConnectResponse:
    """Raises JuteError. A `timeout_ms` of 0 or less says that the session has expired."""
    if len(frame) < _CONNECTED.size:
        raise JuteError("the answer to ConnectRequest is too short")
    _, timeout_ms, session_id = _CONNECTED.unpack_from(frame)
    password, _ = _read_buffer(frame, _CONNECTED.size)
    return ConnectResponse(timeout_ms, session_id, password)


def read_header(frame: bytes) -> tuple[int, int, int]:
    """The xid, the zxid and the error code of an answer."""
    if len(frame) < BODY:
        raise JuteError("an answer is shorter than its header")
    header: tuple[int, int, int] = _REPLY.unpack_from(frame)
    return header


def read_notification(frame: bytes) -> Notification:
    _check(frame, BODY, 8)
    kind, _ = _TWO_INTS.unpack_from(frame, BODY)
    path, _ = _read_buffer(frame, BODY + 8)
    return Notification(_EVENT_TYPES.get(kind), path.decode())


def read_data_and_stat(frame: bytes) -> tuple[bytes, Stat]:
    data, at = _read_buffer(frame, BODY)
    return data, _read_stat(frame, at)


def read_stat(frame: bytes) -> Stat:
    return _read_stat(frame, BODY)


def read_path(frame: bytes) -> str:
    return _read_buffer(frame, BODY)[0].decode()


def read_children(frame: bytes) -> list[str]:
    _check(frame, BODY, 4)
    (count,) = _INT.unpack_from(frame, BODY)
    at = BODY + 4
    names: list[str] = []
    for _ in range(count):
        name, at = _read_buffer(frame, at)
        names.append(name.decode())
    names.sort()
    return names


def read_multi(frame: bytes, operations: Sequence[Operation]) -> list[Result]:
    """The results of a multi. Raises the error of the operation that failed."""
    at = BODY
    results: list[Result] = []
    failures: list[tuple[Operation, int]] = []
    for operation in operations:
        _check(frame, at, _MULTI.size)
        op, _, _ = _MULTI.unpack_from(frame, at)
        at += _MULTI.size
        if op == Op.ERROR:
            _check(frame, at, 4)
            failures.append((operation, _INT.unpack_from(frame, at)[0]))
            at += 4
        elif op == Op.CREATE:
            made, at = _read_buffer(frame, at)
            results.append(made.decode())
        elif op == Op.SET_DATA:
            results.append(_read_stat(frame, at))
            at += _STAT.size
        else:
            results.append(None)
    # Operations before the failed one have code 0, those after it were not tried.
    for operation, code in failures:
        if code not in (ErrorCode.OK, ErrorCode.RUNTIME_INCONSISTENCY):
            raise error_of(code, operation.path)
    if failures:
        raise error_of(failures[0][1], failures[0][0].path)
    return results


def _check(frame: bytes, at: int, size: int) -> None:
    if at + size > len(frame):
        raise JuteError("an answer ends in the middle of a field")


def _read_buffer(frame: bytes, at: int) -> tuple[bytes, int]:
    """The bytes of a buffer and the position behind it; null is empty."""
    _check(frame, at, 4)
    (size,) = _INT.unpack_from(frame, at)
    at += 4
    if size < 0:
        return b"", at
    _check(frame, at, size)
    return frame[at : at + size], at + size


def _read_stat(frame: bytes, at: int) -> Stat:
    _check(frame, at, _STAT.size)
    czxid, mzxid, ctime, mtime, version, cversion, _, owner, _, children, _ = _STAT.unpack_from(frame, at)
    return Stat(czxid, mzxid, ctime, mtime, version, cversion, owner, children)
