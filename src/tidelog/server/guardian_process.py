"""The process of the guardian: closes the ZooKeeper session of a broker that died.

tidelog.server.guardian starts it as a script. It imports little, to take little memory, and all of it before
the broker may die. The broker writes lines to its standard input, each a word and its values:

    hosts HOST PORT HOST PORT ...   the ZooKeeper servers
    timeout SECONDS                 the time limit for the end of the session, after which it expires anyway
    auth SCHEME HEX                 an identity at ZooKeeper
    tls NAME HEX                    TLS to ZooKeeper: a setting by its name, as hexadecimal text
    session ID HEX                  the present session, and its password
    watch PID                       begin to wait for the end of this process
    stop                            the broker stops: nothing is left to do

The guardian notices the end of the broker by its pidfd or, without pidfd, by the end of the standard input.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from struct import pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

RETRY_SECONDS = 0.1
ATTEMPT_SECONDS = 2.0


class Orders:
    """The lines that the broker has written so far."""

    def __init__(self) -> None:
        self.hosts: list[tuple[str, int]] = []
        self.timeout = 18.0
        self.auth: list[tuple[str, bytes]] = []
        self.tls: dict[str, str] = {}
        self.session_id = 0
        self.password = b""
        self.watched = 0
        self.is_stopped = False
        self._partial = b""

    def feed(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._take(line.decode().split(" "))

    def _take(self, words: list[str]) -> None:
        kind, values = words[0], words[1:]
        if kind == "hosts":
            ports = map(int, values[1::2])
            self.hosts = list(zip(values[::2], ports, strict=True))
        elif kind == "timeout":
            self.timeout = float(values[0])
        elif kind == "auth":
            self.auth.append((values[0], bytes.fromhex(values[1])))
        elif kind == "tls":
            self.tls[values[0]] = bytes.fromhex(values[1]).decode()
        elif kind == "session":
            self.session_id, self.password = int(values[0]), bytes.fromhex(values[1])
        elif kind == "watch":
            self.watched = int(values[0])
        elif kind == "stop":
            self.is_stopped = True


def wait_for_end(orders: Orders, source: int) -> None:
    """Return when the broker stops or is dead."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    death = -1
    while not orders.is_stopped:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if source in ready:
            data = os.read(source, 65536)
            orders.feed(data)
            if not data:
                if death < 0:
                    return
                poll.unregister(source)
                ready.discard(source)
        if death >= 0 and death in ready:
            return
        if orders.watched and death < 0:
            death = _pidfd(orders.watched)
            if death >= 0:
                poll.register(death, select.POLLIN)
            if os.getppid() != orders.watched:
                return  # it died before it could be watched


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def close_session(orders: Orders) -> bool:
    """Resume and close the session, which deletes its ephemeral nodes.

    Returns False if no server answered.
    """
    end = time.monotonic() + orders.timeout
    while True:
        for host in orders.hosts:
            try:
                _close(orders, host)
                return True
            except (OSError, EOFError):
                pass  # the next server
        if time.monotonic() > end:
            return False
        time.sleep(RETRY_SECONDS)


def _close(orders: Orders, host: tuple[str, int]) -> None:
    def send(payload: bytes) -> None:
        connection.sendall(pack(">i", len(payload)) + payload)

    def exact(size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = connection.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def receive() -> bytes:
        return exact(unpack(">i", exact(4))[0])

    connection = socket.create_connection(host, ATTEMPT_SECONDS)
    try:
        if orders.tls:
            connection = _encrypted(connection, host[0], orders.tls)
        password = pack(">i", len(orders.password)) + orders.password
        # Protocol 0, no transaction seen, a time-out, the session to resume, no read-only server.
        send(pack(">iqiq", 0, 0, 10_000, orders.session_id) + password + b"\0")
        _, timeout, session_id = unpack(">iiq", receive()[:16])
        if timeout <= 0 or session_id != orders.session_id:
            return  # the session is over
        for scheme, credentials in orders.auth:
            name = scheme.encode()
            send(pack(">iiii", -4, 100, 0, len(name)) + name + pack(">i", len(credentials)) + credentials)
            receive()
        send(pack(">ii", 1, -11))
        receive()
    finally:
        connection.close()


def _encrypted(connection: socket.socket, host: str, settings: dict[str, str]) -> socket.socket:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings["check_host"] == "true"
    context.minimum_version = ssl.TLSVersion[settings["minimum_version"]]
    context.maximum_version = ssl.TLSVersion[settings["maximum_version"]]
    if "ciphers" in settings:
        context.set_ciphers(settings["ciphers"])
    if "trusted" in settings:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=settings["trusted"])
    else:
        context.load_default_certs()
    if "key" in settings:
        _load_key(context, settings["key"], settings["key_password"])
    return context.wrap_socket(connection, server_hostname=host)


def _load_key(context: ssl.SSLContext, key: str, password: str) -> None:
    """OpenSSL reads keys only from files: one in memory, or else an encrypted one for a moment."""
    in_memory = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
    if in_memory:
        descriptor = os.memfd_create("key")
        path = f"/proc/self/fd/{descriptor}"
    else:
        import tempfile

        descriptor, path = tempfile.mkstemp()
    try:
        with open(descriptor, "w", closefd=False) as file:
            file.write(key)
        context.load_cert_chain(path, password=password)
    finally:
        os.close(descriptor)
        if not in_memory:
            os.unlink(path)


def main() -> int:
    # Ignore signals to a group or a service: the guardian ends after the broker.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    orders = Orders()
    wait_for_end(orders, 0)
    if orders.is_stopped or not orders.session_id:
        return 0
    return 0 if close_session(orders) else 1


if __name__ == "__main__":
    sys.exit(main())
