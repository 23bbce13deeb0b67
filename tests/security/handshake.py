"""A TLS handshake of two contexts in memory."""

from __future__ import annotations

import ssl


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """The server's and the client's side after the handshake. Raises the SSLError of the refusing side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=host)
    unfinished = [theirs, ours]
    while unfinished:
        for side in list(unfinished):
            try:
                side.do_handshake()
                unfinished.remove(side)
            except ssl.SSLWantReadError:
                pass
    # In TLS 1.3 the client ends first: the server's refusal of its certificate shows when it reads.
    theirs.write(b"x")
    assert ours.read(1) == b"x"
    return ours, theirs
