"""ServerConnection: the server's end of a connection to the simulated ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Protocol

from tidelog.metadata.simulated import requests
from tidelog.metadata.simulated.link import Pipe
from tidelog.metadata.simulated.node_tree import NodeTree, OperationFailed
from tidelog.metadata.simulated.requests import ConnectRequest, Reader
from tidelog.metadata.tree import EventType, NoNode, Operation, Result, WatchEvent
from tidelog.metadata.zookeeper.jute import ErrorCode, Op

_LENGTH = Struct(">i")


class Sessions(Protocol):
    """The part of the server that a connection needs."""

    tree: NodeTree

    def on_connect_request(self, connection: ServerConnection, request: ConnectRequest) -> None: ...

    def on_heard(self, connection: ServerConnection) -> None: ...

    def change(self, session_id: int, operations: list[Operation]) -> list[Result]:
        """Apply operations and trigger the watches. Raises OperationFailed."""

    def end_session(self, session_id: int) -> None: ...

    def loses_connection(self) -> bool:
        """Whether the connection ends before the answer to this request."""

    def makes_lost_request(self) -> bool:
        """Whether a request whose answer is lost is made."""

    def forget(self, connection: ServerConnection) -> None: ...


class ServerConnection:
    """Handles the requests of one connection in order, and keeps its watches."""

    def __init__(self, server: Sessions, client: str) -> None:
        self.client = client
        self.session_id = 0
        self.to_server: Pipe
        self.to_client: Pipe
        self._server = server
        self._lost = False
        """Whether answers are lost. Requests that travel still arrive."""
        self._closed = False
        self._received = b""
        self._data_watches: set[str] = set()
        self._child_watches: set[str] = set()
        self._handlers: dict[int, Callable[[int, Reader], None]] = {
            Op.GET_DATA: self._get,
            Op.EXISTS: self._exists,
            Op.GET_CHILDREN: self._children,
            Op.MULTI: self._multi,
            Op.PING: self._confirm,
            Op.AUTH: self._confirm,
            Op.SET_WATCHES: self._set_watches,
            Op.CLOSE_SESSION: self._close_session,
        }

    def lose(self) -> None:
        """Lose all answers that travel and all that will be made, and tell the client."""
        if not self._lost:
            self.to_client.keep_first(0)
            self.to_client.send(None)
            self._lost = True
            self._drop_watches()

    def close(self) -> None:
        """Handle no further request. Answers that travel arrive before the end."""
        if not self._closed:
            self._closed = True
            if not self._lost:
                self.to_client.send(None)
            self.to_server.break_off()
            self._drop_watches()
            self._server.forget(self)

    def send(self, frame: bytes) -> None:
        if not self._lost and not self._closed:
            self.to_client.send(frame)

    def notify(self, event: WatchEvent) -> None:
        """Send the event if a watch of this connection waits for it."""
        kind, path = event
        watched = kind is not EventType.CHILDREN and path in self._data_watches
        if kind in (EventType.CHILDREN, EventType.DELETED) and path in self._child_watches:
            watched = True
            self._child_watches.discard(path)
        if watched:
            if kind is not EventType.CHILDREN:
                self._data_watches.discard(path)
            self.send(requests.notification(kind, path))

    def receive(self, data: bytes | None) -> None:
        """Handle bytes of the client; None is the end of the connection."""
        if data is None:
            self.close()
            return
        if self._server.loses_connection():
            self.lose()
            if not self._server.makes_lost_request():
                self.close()
                return
        self._received += data
        while len(self._received) >= 4 and not self._closed:
            (length,) = _LENGTH.unpack_from(self._received)
            if len(self._received) < 4 + length:
                return
            frame, self._received = self._received[4 : 4 + length], self._received[4 + length :]
            self._handle(frame)

    def _handle(self, frame: bytes) -> None:
        if not self.session_id:
            self._server.on_connect_request(self, requests.read_connect_request(frame))
            return
        self._server.on_heard(self)
        reader = Reader(frame)
        xid, op = reader.integer(), reader.integer()
        handler = self._handlers.get(op)
        if handler is None:
            self._change(xid, reader.operation(op))
        else:
            handler(xid, reader)

    def _reply(self, xid: int, body: bytes = b"", code: int = ErrorCode.OK) -> None:
        self.send(requests.reply(xid, self._server.tree.zxid, code, body))

    # --- reads

    def _get(self, xid: int, reader: Reader) -> None:
        path, watch = reader.text(), reader.flag()
        try:
            found = self._server.tree.get(path)
        except NoNode:
            self._reply(xid, code=ErrorCode.NO_NODE)
            return
        if watch:
            self._data_watches.add(path)
        self._reply(xid, requests.data_body(*found))

    def _exists(self, xid: int, reader: Reader) -> None:
        path, watch = reader.text(), reader.flag()
        if watch:
            self._data_watches.add(path)
        node = self._server.tree.nodes.get(path)
        if node is None:
            self._reply(xid, code=ErrorCode.NO_NODE)
        else:
            self._reply(xid, requests.stat_body(node.stat))

    def _children(self, xid: int, reader: Reader) -> None:
        path, watch = reader.text(), reader.flag()
        try:
            names = self._server.tree.children(path)
        except NoNode:
            self._reply(xid, code=ErrorCode.NO_NODE)
            return
        if watch:
            self._child_watches.add(path)
        self._reply(xid, requests.children_body(names))

    def _set_watches(self, xid: int, reader: Reader) -> None:
        """Set the watches of an earlier connection, or tell of changes that they missed."""
        seen, nodes = reader.long(), self._server.tree.nodes
        for path in reader.texts():
            node = nodes.get(path)
            self._data_watches.add(path)
            if node is None:
                self.notify(WatchEvent(EventType.DELETED, path))
            elif node.mzxid > seen:
                self.notify(WatchEvent(EventType.CHANGED, path))
        for path in reader.texts():
            self._data_watches.add(path)
            if path in nodes:
                self.notify(WatchEvent(EventType.CREATED, path))
        for path in reader.texts():
            node = nodes.get(path)
            self._child_watches.add(path)
            if node is None:
                self.notify(WatchEvent(EventType.DELETED, path))
            elif node.pzxid > seen:
                self.notify(WatchEvent(EventType.CHILDREN, path))
        self._reply(xid)

    # --- changes

    def _change(self, xid: int, operation: Operation) -> None:
        try:
            [result] = self._server.change(self.session_id, [operation])
        except OperationFailed as failed:
            self._reply(xid, code=requests.code_of(failed.error))
        else:
            self._reply(xid, requests.result_body(result))

    def _multi(self, xid: int, reader: Reader) -> None:
        operations = reader.operations()
        try:
            results = self._server.change(self.session_id, operations)
        except OperationFailed as failed:
            code = requests.code_of(failed.error)
            self._reply(xid, requests.failed_multi_body(len(operations), failed.index, code))
        else:
            self._reply(xid, requests.multi_body(operations, results))

    # --- the session

    def _confirm(self, xid: int, reader: Reader) -> None:
        self._reply(xid)

    def _close_session(self, xid: int, reader: Reader) -> None:
        self._server.end_session(self.session_id)
        self._reply(xid)
        self.close()

    def _drop_watches(self) -> None:
        self._data_watches.clear()
        self._child_watches.clear()


