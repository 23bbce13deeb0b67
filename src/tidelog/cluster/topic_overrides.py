"""TopicOverrides: the settings that the topics of this broker override.

UpdateMetadata carries no settings. A broker of a cluster reads the settings of a topic from the tree when
it creates a log of the topic, and again when it is notified of a change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

ReadOverrides = Callable[[Collection[str]], Awaitable[Mapping[str, Mapping[str, str]]]]
"""Reads the settings of topics (/config/topics/T); topics without settings may be left out."""


class TopicOverrides:
    """Caches the settings of the topics with logs on this broker, and reads those of other topics."""

    def __init__(self, read: ReadOverrides) -> None:
        self._read = read
        self._known: dict[str, Mapping[str, str]] = {}
        self._loading: set[str] = set()

    def of(self, topic: str) -> Mapping[str, str]:
        """The settings of a topic that was loaded; none for other topics."""
        return self._known.get(topic, {})

    def is_loaded(self, topic: str) -> bool:
        return topic in self._known

    async def load(self, topics: Collection[str]) -> None:
        """Read and keep the settings of topics that are not loaded yet. Raises TreeUnavailable."""
        missing = [topic for topic in dict.fromkeys(topics) if topic not in self._known]
        if not missing:
            return
        self._loading.update(missing)
        try:
            overrides = await self._read(missing)
            for topic in missing:
                if topic in self._loading:  # else `changed` has set newer settings meanwhile
                    self._known[topic] = overrides.get(topic, {})
        finally:
            self._loading.difference_update(missing)

    async def read(self, topics: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        """Read the present settings of any topics, without caching them. Raises TreeUnavailable."""
        return await self._read(topics)

    def changed(self, topic: str, overrides: Mapping[str, str]) -> bool:
        """Replace the settings of a topic, if they are cached; returns whether they are."""
        is_needed = topic in self._known or topic in self._loading
        if is_needed:
            self._loading.discard(topic)
            self._known[topic] = overrides
        return is_needed

    def forget(self, topic: str) -> None:
        """Drop the settings of a topic that has no log on this broker any more."""
        self._known.pop(topic, None)

    def loaded(self) -> list[str]:
        """The topics with cached settings. They have to be read again after a lost session."""
        return list(self._known)
