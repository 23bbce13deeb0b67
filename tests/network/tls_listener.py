"""A listener with TLS, and clients that talk to it."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from pathlib import Path

from tests.network.harness import Client, Running
from tests.support.certificates import Signed, make_authority, make_certificate
from tidelog.network.authentication_metrics import AuthenticationMetrics
from tidelog.network.channel import Channel
from tidelog.network.listener_security import Session


class TlsListener:
    """Implements ListenerSecurity. The principal is what the test says, or the length of the certificate."""

    def __init__(self, folder: Path, *, client_auth: ssl.VerifyMode = ssl.CERT_NONE) -> None:
        self._folder = folder
        self.authority = make_authority()
        self.context = self._make_context(make_certificate(self.authority), client_auth)
        self.refusal: Exception | None = None
        self.threads: list[threading.Thread] = []  # on which handshakes ended
        self.metrics = AuthenticationMetrics()
        self.max_receive_size = 1000
        self.failure_delay_seconds = 0.0

    def _make_context(self, signed: Signed, client_auth: ssl.VerifyMode) -> ssl.SSLContext:
        path = self._folder / "server.pem"
        path.write_text(signed.pem())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.verify_mode = client_auth
        context.load_verify_locations(cadata=self.authority.certificate_pem)
        return context

    def tls_context(self) -> ssl.SSLContext:
        return self.context

    def principal_of(self, certificate: bytes | None, host: str) -> str:
        self.threads.append(threading.current_thread())
        if self.refusal is not None:
            raise self.refusal
        return "User:ANONYMOUS" if certificate is None else f"User:{host}"

    def authenticator(self, channel: Channel, previous: Session | None = None) -> None:
        return None

    def client_context(
        self, *, certificate: Signed | None = None, version: ssl.TLSVersion | None = None
    ) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.certificate_pem)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        if certificate is not None:
            path = self._folder / "client.pem"
            path.write_text(certificate.pem())
            context.load_cert_chain(path)
        return context


def tls_client(running: Running, context: ssl.SSLContext, *, receive_buffer: int | None = None) -> Client:
    """A client whose handshake is done. `receive_buffer` bounds what the kernel takes for a slow reader."""
    client = running.client()
    if receive_buffer is not None:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.sock = context.wrap_socket(client.sock, server_hostname="localhost")
    return client


class BurstClient:
    """Encrypts a burst before it sends it: a thread sends while the caller receives."""

    def __init__(self, running: Running, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._sock = running.client().sock
        while True:
            try:
                self._tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                self._sock.sendall(self._outgoing.read())
                self._incoming.write(self._sock.recv(65536))

    def send(self, data: bytes) -> threading.Thread:
        """Send the last message of the handshake, if it is not sent yet, and `data` in one burst."""
        while data:
            data = data[self._tls.write(data) :]
        sender = threading.Thread(target=self._sock.sendall, args=(self._outgoing.read(),))
        sender.start()
        return sender

    def receive(self) -> tuple[int, bytes]:
        size = struct.unpack(">i", self._exactly(4))[0]
        answer = self._exactly(size)
        return struct.unpack_from(">i", answer)[0], answer[4:]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                data += self._tls.read(size - len(data))
            except ssl.SSLWantReadError:
                self._incoming.write(self._sock.recv(65536))
        return data
