"""ConfigChangeListener: applies settings of the tree that any broker or tool changed.

A change writes the settings and a notification below /config/changes. Each broker reads the settings of every
entity with a new notification and applies them. After an expired session it applies all settings again:
notifications may have been deleted meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol

from tidelog.metadata.change_follower import ChangeFollower
from tidelog.metadata.cluster_store import ClusterStore

_log = logging.getLogger("tidelog.server.config_changes")

TOPICS = "topics/"


class SettingsOfEntities(Protocol):
    """Where the settings go. The methods are called on the loop."""

    def entity_changed(self, entity_path: str, configs: dict[str, str]) -> None:
        """The present settings of an entity, by its path below /config; without any it is removed."""

    def entities(self) -> Collection[str]:
        """The entities other than topics that have settings here."""

    def topics(self) -> Collection[str]:
        """The topics whose settings this broker uses."""


class ConfigChangeListener:
    """`begin` before the settings are read, `start` when they can be applied."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._settings: SettingsOfEntities | None = None
        self._newest = -1
        self._lock = asyncio.Lock()
        self._follower = ChangeFollower("settings", _log)

    async def begin(self) -> None:
        """Watch for notifications. The settings are read after this, so older notifications need no second
        look."""
        self._follower.listen(self._store.tree)
        for notice in await self._store.read_config_changes(self._newest, self._follower.watch):
            self._newest = notice.sequence

    def start(self, settings: SettingsOfEntities) -> None:
        self._settings = settings
        self._follower.start(self._read)

    async def refresh(self, entity_path: str) -> None:
        """Apply the settings of an entity that this broker has just written."""
        async with self._lock:
            await self._apply(entity_path)

    async def close(self) -> None:
        await self._follower.close()

    async def _read(self, everything: bool) -> None:
        async with self._lock:
            await self._read_changes()
            if everything:
                await self._apply_everything()

    async def _read_changes(self) -> None:
        notices = await self._store.read_config_changes(self._newest, self._follower.watch)
        for entity_path in dict.fromkeys(notice.entity_path for notice in notices):
            await self._apply(entity_path)
        if notices:
            self._newest = notices[-1].sequence

    async def _apply(self, entity_path: str) -> None:
        if self._settings is None:
            return
        try:
            configs = await self._store.read_config(entity_path)
        except ValueError as error:  # a node that cannot be understood, or a path that no node has
            _log.error("settings are not applied: %s", error)
            return
        _log.info("settings of %s are applied", entity_path)
        _tell(self._settings, entity_path, configs)

    async def _apply_everything(self) -> None:
        if self._settings is None:
            return
        found = await self._store.read_entity_configs()
        for entity_path in {*found, *self._settings.entities()}:
            _tell(self._settings, entity_path, found.get(entity_path, {}))
        topics = await self._store.topic_configs(self._settings.topics())
        for topic, configs in topics.items():
            _tell(self._settings, f"{TOPICS}{topic}", configs)


def _tell(settings: SettingsOfEntities, entity_path: str, configs: dict[str, str]) -> None:
    """Pass settings on. An error is logged: the settings of other entities are applied all the same."""
    try:
        settings.entity_changed(entity_path, configs)
    except Exception:
        _log.exception("settings of %s could not be applied", entity_path)
