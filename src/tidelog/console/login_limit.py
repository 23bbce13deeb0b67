"""LoginLimit: slows down those who guess passwords, by address, by user, and by both together."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

FORGET_SECONDS: Final = 15 * 60.0
MOST_KEYS: Final = 20_000
LONGEST_WAIT: Final = 5 * 60.0
FREE: Final = {"both": 5, "address": 30, "user": 100}
"""Failures before a wait. The user alone has the highest count: others must not lock somebody out."""


@dataclass(slots=True)
class Failures:
    count: int
    last: float
    blocked_until: float


class LoginLimit:
    """Counts an attempt as failed until `succeeded` is called, so that many at once do not slip through."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, most_keys: int = MOST_KEYS) -> None:
        self._now = now
        self._most_keys = most_keys
        self._failures: OrderedDict[tuple[str, str], Failures] = OrderedDict()

    def attempt(self, address: str, user: str) -> float:
        """0 if the login may be tried; else the seconds to wait, and the attempt is not counted."""
        now = self._now()
        wait = max(self._wait(key, now) for key in _keys(address, user))
        if wait > 0:
            return wait
        for key in _keys(address, user):
            self._count(key, now)
        return 0.0

    def succeeded(self, address: str, user: str) -> None:
        """Forget the failures of this user from this address. The address keeps its other failures."""
        for key in _keys(address, user):
            found = self._failures.get(key)
            if found is None:
                continue
            if key[0] == "both":
                del self._failures[key]
            else:
                found.count -= 1
                found.blocked_until = 0.0

    def __len__(self) -> int:
        return len(self._failures)

    def _wait(self, key: tuple[str, str], now: float) -> float:
        found = self._failures.get(key)
        if found is None:
            return 0.0
        if now - found.last > FORGET_SECONDS:
            del self._failures[key]
            return 0.0
        return max(found.blocked_until - now, 0.0)

    def _count(self, key: tuple[str, str], now: float) -> None:
        found = self._failures.setdefault(key, Failures(0, now, 0.0))
        found.count += 1
        found.last = now
        over = found.count - FREE[key[0]]
        if over >= 0:
            found.blocked_until = now + min(2.0**over, LONGEST_WAIT)
        self._failures.move_to_end(key)
        while len(self._failures) > self._most_keys:
            self._failures.popitem(last=False)


def _keys(address: str, user: str) -> Iterator[tuple[str, str]]:
    network = _network(address)
    yield "both", f"{network} {user}"
    yield "address", network
    yield "user", user


def _network(address: str) -> str:
    """The address; of IPv6 the network of 64 bits, as one host has all of its addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False).network_address)
    return str(found)
