"""TopicCount: the topics of a consumer, with the number of its threads (streams) for each topic.

The topics are named, or selected by a filter: a Whitelist or a Blacklist of names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

from tidelog.metadata.nodes import ConsumerNode
from tidelog.metadata.state import INTERNAL_TOPICS

STATIC = "static"
WHITE_LIST = "white_list"
BLACK_LIST = "black_list"


class ConsumerThreadId(NamedTuple):
    """A thread of a consumer; as text the owner of a partition in the tree."""

    consumer: str
    thread: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.thread}"


class TopicFilter:
    """Selects topics by regular expressions for whole names, separated by commas or bars.

    >>> Whitelist("clicks, logins.*").allows("logins-eu"), Blacklist("clicks").allows("clicks")
    (True, False)
    """

    pattern: ClassVar[str]

    def __init__(self, text: str) -> None:
        self.regex = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
        try:
            self._compiled = re.compile(self.regex)
        except re.error as error:
            raise ValueError(f"the topic filter {text!r} is no regular expression: {error}") from None

    def _matches(self, topic: str) -> bool:
        return self._compiled.fullmatch(topic) is not None

    def allows(self, topic: str, *, exclude_internal: bool = True) -> bool:
        """Whether the filter selects a topic. Internal topics are left out, if `exclude_internal`."""
        raise NotImplementedError


class Whitelist(TopicFilter):
    """Selects the topics that match."""

    pattern = WHITE_LIST

    def allows(self, topic: str, *, exclude_internal: bool = True) -> bool:
        return self._matches(topic) and not (exclude_internal and topic in INTERNAL_TOPICS)


class Blacklist(TopicFilter):
    """Selects the topics that do not match."""

    pattern = BLACK_LIST

    def allows(self, topic: str, *, exclude_internal: bool = True) -> bool:
        return not self._matches(topic) and not (exclude_internal and topic in INTERNAL_TOPICS)


@dataclass(slots=True, frozen=True)
class StaticTopicCount:
    """Topics by name."""

    counts: Mapping[str, int]
    pattern: ClassVar[str] = STATIC

    @property
    def subscription(self) -> dict[str, int]:
        return dict(self.counts)

    def threads(self, consumer: str, topics: Iterable[str]) -> dict[str, list[ConsumerThreadId]]:
        """The threads of the consumer for each of the topics that it reads."""
        return {topic: _threads(consumer, self.counts[topic]) for topic in topics if topic in self.counts}


@dataclass(slots=True, frozen=True)
class WildcardTopicCount:
    """Topics of a filter, all with the same number of threads."""

    filter: TopicFilter
    count: int
    exclude_internal: bool = True

    @property
    def pattern(self) -> str:
        return self.filter.pattern

    @property
    def subscription(self) -> dict[str, int]:
        return {self.filter.regex: self.count}

    def threads(self, consumer: str, topics: Iterable[str]) -> dict[str, list[ConsumerThreadId]]:
        """The threads of the consumer for each of the topics that it reads."""
        threads = _threads(consumer, self.count)
        return {
            topic: threads
            for topic in topics
            if self.filter.allows(topic, exclude_internal=self.exclude_internal)
        }


TopicCount: TypeAlias = StaticTopicCount | WildcardTopicCount


def _threads(consumer: str, count: int) -> list[ConsumerThreadId]:
    return [ConsumerThreadId(consumer, thread) for thread in range(count)]


def topic_count_of(node: ConsumerNode, *, exclude_internal: bool = True) -> TopicCount:
    """The topics of a registered consumer. Raises ValueError if its filter cannot be read."""
    filters: dict[str, type[TopicFilter]] = {WHITE_LIST: Whitelist, BLACK_LIST: Blacklist}
    kind = filters.get(node.pattern)
    if kind is None:
        return StaticTopicCount(node.subscription)
    for text, count in node.subscription.items():
        return WildcardTopicCount(kind(text), count, exclude_internal)
    return StaticTopicCount({})
