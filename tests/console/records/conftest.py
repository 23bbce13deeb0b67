"""A broker inside the process for the tests of this folder, and an admin client for each test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.console.records.topic_reader import TopicReader
from tidelog.testing import Broker

T = TypeVar("T")
WithReader = Callable[[str, Callable[[TopicReader], Awaitable[T]]], T]


@pytest.fixture(scope="package")
def broker() -> Iterator[Broker]:
    # Records of tests have timestamps of 1970.
    with Broker(log_retention_ms=-1, log_retention_check_interval_ms=24 * 3600 * 1000) as broker:
        yield broker


@pytest.fixture
def with_reader(broker: Broker) -> WithReader[T]:
    """Runs a coroutine function with the reader of a topic."""

    def run(topic: str, body: Callable[[TopicReader], Awaitable[T]]) -> T:
        async def main() -> T:
            async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
                return await body(TopicReader(admin, topic))

        return asyncio.run(main())

    return run
