"""The first contact with a cluster: a broker answers in time, or an error names the address.

A running query waits for absent brokers as long as the time-outs of its clients say. So each process makes
contact only once with the same settings.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import RETRIED
from tidelog.clients.blocking import LoopThread
from tidelog.clients.errors import TimeoutException
from tidelog.clients.settings import admin_definition
from tidelog.errors import KafkaError, RequestTimedOut
from tidelog.spark.client_options import on_this_machine

NO_ANSWER: tuple[type[KafkaError], ...] = (*RETRIED, RequestTimedOut, TimeoutException)
# Extra time for the client's thread to report that the time is over.
GRACE_SECONDS = 1.0


class ClusterUnreachable(RuntimeError):
    """No broker answers at kafka.bootstrap.servers."""


def first_contact(client: Mapping[str, str], timeout_ms: int) -> None:
    """Return when a broker has answered this process once. Raises ClusterUnreachable."""
    key = tuple(sorted(client.items()))
    if key in _reached():
        return
    names = admin_definition()
    settings = {name: value for name, value in on_this_machine(client).items() if name in names}
    # One broker that does not answer must not take the time of the others.
    settings.setdefault("request.timeout.ms", str(max(1000, timeout_ms // 2)))
    settings.setdefault("socket.connection.setup.timeout.ms", str(max(1000, timeout_ms // 2)))
    thread = LoopThread("tidelog-spark first contact")
    try:
        _reach(thread, AsyncAdmin(settings), timeout_ms / 1000)
    except NO_ANSWER as error:
        raise ClusterUnreachable(
            f"no broker answers at kafka.bootstrap.servers={client['bootstrap.servers']} within"
            f" {timeout_ms} ms ({error}): check the address, and that a broker runs there; the"
            " option bootstrapTimeoutMs gives it more time"
        ) from error
    finally:
        thread.close()
    _reached().add(key)


def _reach(thread: LoopThread, admin: AsyncAdmin, seconds: float) -> None:
    """Return when a broker has answered."""

    async def ask() -> None:
        await admin.driver.metadata((), admin.driver.deadline(seconds))

    try:
        thread.run(ask(), timeout=seconds + GRACE_SECONDS)
    finally:
        with contextlib.suppress(TimeoutException):  # a slow end is no reason to fail
            thread.run(admin.close(), timeout=GRACE_SECONDS)


@functools.cache
def _reached() -> set[tuple[tuple[str, str], ...]]:
    """The settings with which this process has reached a broker."""
    return set()
