"""Limits the wait of a request for the metadata tree, because ZooKeeper may be unreachable for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tidelog.errors import KafkaStorageError, RequestTimedOut
from tidelog.metadata.tree import TreeUnavailable

T = TypeVar("T")


async def in_time(work: Awaitable[T], seconds: float, action: str = "changed") -> T:
    """The result of `work` on the tree. `action` is its verb for messages.

    Raises KafkaStorageError if the tree refuses, and RequestTimedOut if ZooKeeper does not answer.
    """
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TreeUnavailable as error:
        raise KafkaStorageError(f"The tree cannot be {action}: {error}") from error
    except TimeoutError:
        raise RequestTimedOut(
            f"The tree cannot be {action}: ZooKeeper has not answered within {seconds:g} s."
        ) from None
