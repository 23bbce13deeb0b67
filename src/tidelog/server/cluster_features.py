"""ClusterFeatures: the finalized features of a cluster, which its clients may use.

A broker announces the features that it supports in its registration. A feature is on while every live broker
supports it. Kafka 3.9 announces none: in a cluster with it clients use the classic protocols, and
coordinators write records that Kafka 3.9 can read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.metadata.async_tree import SessionExpired
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.state import BrokerRegistration
from tidelog.metadata.tree import TreeUnavailable

_log = logging.getLogger("tidelog.server.features")

Features = Mapping[str, tuple[int, int]]
"""The lowest and highest version of each feature."""


def finalized(supported: Features, brokers: Iterable[BrokerRegistration]) -> dict[str, int]:
    """The highest version of each feature that all brokers support."""
    levels = {name: high for name, (_, high) in supported.items()}
    for broker in brokers:
        for name in list(levels):
            if name in broker.features:
                levels[name] = min(levels[name], broker.features[name][1])
            else:
                del levels[name]
    return levels


class ClusterFeatures:
    """`changed` is called with the finalized features when they change."""

    def __init__(
        self,
        store: ClusterStore,
        metadata: MetadataCache,
        supported: Features,
        changed: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._supported = supported
        self._changed = changed
        self._without_features: frozenset[int] = frozenset()
        self._task: asyncio.Task[None] | None = None
        self._is_outdated = False

    async def load(self) -> None:
        """Read the registrations of all brokers. Raises TreeUnavailable."""
        brokers = await self._store.read_brokers()
        self._without_features = frozenset(id for id, broker in brokers.items() if not broker.features)
        self._finalize(brokers.values())

    def is_kafka(self, broker_id: int) -> bool:
        """Whether a broker is known to be Kafka 3.9, which announces no features."""
        return broker_id in self._without_features

    def brokers_changed(self) -> None:
        """Brokers joined or left, or a change may have been missed: read the registrations again."""
        self._is_outdated = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        try:
            while self._is_outdated:
                self._is_outdated = False
                try:
                    await self.load()
                except SessionExpired:
                    self._is_outdated = True  # the next read waits for the new session
        except TreeUnavailable as error:
            _log.info("the features of the brokers cannot be read: %s", error)
        except Exception:
            _log.exception("the features of the brokers cannot be read")
        finally:
            self._task = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _finalize(self, brokers: Iterable[BrokerRegistration]) -> None:
        levels = finalized(self._supported, brokers)
        if levels == self._metadata.features:
            return
        _log.info("finalized features: %s", levels or "none, as a broker of the cluster has none")
        self._metadata.features = levels
        self._metadata.features_epoch += 1
        self._changed(levels)
