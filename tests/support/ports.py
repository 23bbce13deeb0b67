"""Ports that nobody has at the moment, for settings that have to name one.

The system gives outgoing connections the ports of a range of their own. A port of that range may be taken
between the choice and its use, so these are below it.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

FIRST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", random.SystemRandom().randrange(FIRST, _end())))
            except OSError:
                continue
            ports.append(probe.getsockname()[1])
    return ports


def free_port() -> int:
    return free_ports(1)[0]


def _end() -> int:
    try:
        first_outgoing = int(RANGE.read_text().split()[0])
    except OSError:
        return 32_768
    return first_outgoing if first_outgoing > 2 * FIRST else 32_768
