"""Relays plain connections to a TLS port, so that the load generators need no TLS of their own.

    python bench/tls_relay.py PORT TLS_PORT CERTIFICATES

It is a process of its own: its work is not the broker's. Each connection has a thread.
"""

from __future__ import annotations

import select
import socket
import ssl
import sys
import threading

PIECE = 256 * 1024


def relay(plain: socket.socket, tls: ssl.SSLSocket) -> None:
    """Copy both ways until one side ends. Each side answers only what it has read to its end."""
    buffer = bytearray(PIECE)
    view = memoryview(buffer)
    tls.setblocking(False)  # a readable socket may have a message of TLS alone
    with plain, tls:
        while True:
            ready = [tls] if tls.pending() else select.select([plain, tls], [], [])[0]
            for source in ready:
                try:
                    count = source.recv_into(buffer)
                except ssl.SSLWantReadError:
                    continue
                if not count:
                    return
                if source is tls:
                    plain.sendall(view[:count])
                else:
                    send(tls, view[:count])


def send(tls: ssl.SSLSocket, data: memoryview) -> None:
    while data:
        try:
            data = data[tls.send(data) :]
        except ssl.SSLWantWriteError:
            select.select([], [tls], [])


def main() -> None:
    port, tls_port = int(sys.argv[1]), int(sys.argv[2])
    context = ssl.create_default_context(cafile=sys.argv[3])
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        print("ready", flush=True)
        while True:
            plain, _ = listener.accept()
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw = socket.create_connection(("127.0.0.1", tls_port))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = context.wrap_socket(raw, server_hostname="localhost")
            threading.Thread(target=relay, args=(plain, tls), daemon=True).start()


if __name__ == "__main__":
    main()
