"""AllowedHosts: the names under which a console answers.

A site that gives its own name to the address of a console (DNS rebinding) is the console's own site for a
browser: it could read every page. So a name counts only if it is known to be the console's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

LOCAL_NAME: Final = "localhost"
ANY: Final = "*"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AllowedHosts:
    """Always: localhost, loopback addresses, and the address at which a connection arrives.

    `names` are host names and addresses more, `*.example.com` for the names below one, `*` for all.
    `any_address` allows all addresses: no other site can have one as its name, but it may lead anywhere.
    """

    def __init__(self, names: Iterable[str] = (), *, any_address: bool = False) -> None:
        given = {_plain(name) for name in names} - {""}
        self._is_open = ANY in given
        self._below = tuple(name[1:] for name in given if name.startswith("*."))
        self._names = frozenset(name for name in given if _address(name) is None) | {LOCAL_NAME}
        self._addresses = frozenset(filter(None, map(_address, given)))
        self._any_address = any_address

    def allows(self, host: str, arrived_at: str) -> bool:
        """Whether a request with this header Host is for the console. `arrived_at` is the local address."""
        if self._is_open:
            return True
        name = host_name(host)
        address = _address(name)
        if address is None:
            return name in self._names or name.endswith(self._below)
        return (
            self._any_address
            or address.is_loopback
            or address in self._addresses
            or address == _address(arrived_at)
        )


def host_name(host: str) -> str:
    """The name or address in a header Host, without the port."""
    name, colon, port = host.rpartition(":")
    return _plain(name if colon and port.isdecimal() and not host.endswith("]") else host)


def _plain(name: str) -> str:
    return name.strip().strip("[]").rstrip(".").lower()


def _address(name: str) -> Address | None:
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
