"""Clients that ask for metadata as fast as their quota lets them, as a process of its own.

`python -m tests.server.asking_clients HOST:PORT CONNECTIONS` runs until its input ends.
"""

from __future__ import annotations

import sys
import threading

from tests.support.raw import RawConnection
from tidelog.protocol.messages.metadata import MetadataRequest

CLIENT_ID = "app"


def main() -> None:
    bootstrap, connections = sys.argv[1], int(sys.argv[2])
    for _ in range(connections):
        threading.Thread(target=_ask, args=(bootstrap,), daemon=True).start()
    sys.stdin.read()


def _ask(bootstrap: str) -> None:
    connection = RawConnection(bootstrap, client_id=CLIENT_ID, timeout=30.0)
    while True:
        connection.call(MetadataRequest(topics=None), 9)


if __name__ == "__main__":
    main()
