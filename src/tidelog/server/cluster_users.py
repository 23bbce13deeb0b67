"""Stores SCRAM users in ZooKeeper before brokers start, as kafka-configs --zookeeper does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import partial

from tidelog.clock import SystemClock
from tidelog.metadata import paths
from tidelog.metadata.async_tree import ensure_path
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.zookeeper import ZooKeeperSettings, ZooKeeperTree

CONNECT_SECONDS = 10.0


def store_users(
    zookeeper: str, users: Mapping[str, Mapping[str, str]], settings: ZooKeeperSettings | None = None
) -> None:
    """Write credentials by user and mechanism; other settings of the users stay. Raises TreeError."""
    asyncio.run(_store(zookeeper, users, settings or ZooKeeperSettings(connect_timeout=CONNECT_SECONDS)))


async def _store(zookeeper: str, users: Mapping[str, Mapping[str, str]], settings: ZooKeeperSettings) -> None:
    rng = random.Random()
    async with await ZooKeeperTree.connect(zookeeper, settings, rng=rng) as tree:
        store = ClusterStore(tree, SystemClock(), rng)
        await ensure_path(tree, paths.CONFIG_CHANGES)
        for user, credentials in users.items():
            path = paths.entity_path("users", user)
            await store.change_config(path, partial(_merged, credentials))


def _merged(credentials: Mapping[str, str], present: Mapping[str, str]) -> Mapping[str, str]:
    return {**present, **credentials}
