"""Whether an answer is the same as a recorded one, apart from what two runs of a broker may differ in.

Identifiers that a broker makes up (topic ids, member ids, session ids, producer ids) are free at their first
appearance; after that, the same recorded one stands for the same live one and for no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.protocol.json import Json

TEXT = "(text)"  # how the recording masks what is written for people
ZERO_UUID = "A" * 22

IDENTIFIERS = {
    "topicId": "topic",
    "memberId": "member",
    "leader": "member",
    "clusterId": "cluster",
    "sessionId": "session",
    "producerId": "producer",
    "clientInstanceId": "client instance",
    "subscriptionId": "subscription",
}
NOT_IDENTIFIERS = (ZERO_UUID, "", 0, -1, None)  # stand for "none" and are the same in every run
TIMES = {"logAppendTimeMs", "transactionStartTimeMs"}
AMOUNTS = {"totalBytes", "usableBytes", "finalizedFeaturesEpoch", "port"}
FREE_TEXTS = {"host", "logDir"}
MASKED = {"records"}

# What tells one element of an unordered list from the others.
KEYS = (
    "name", "topic", "apiKey", "partitionIndex", "partition", "index", "partitionId", "groupId", "group",
    "resourceType", "resourceName", "nodeId", "brokerId", "transactionalId", "key", "entityType",
    "batchIndex",
)  # fmt: skip


@dataclass(slots=True)
class Differences:
    """Compares answers one after the other and remembers which identifier stands for which."""

    _live_of: dict[tuple[str, str | int], str | int] = field(default_factory=dict)
    _taken: set[tuple[str, str | int]] = field(default_factory=set)

    def between(self, recorded: dict[str, Json], live: dict[str, Json], request: Json) -> list[str]:
        """One line for each difference; none when the answers agree."""
        return list(self._values("", "answer", recorded, live, _scalars(request)))

    def _values(self, name: str, where: str, recorded: Json, live: Json, asked: set[Json]) -> Iterator[str]:
        if isinstance(recorded, dict) and isinstance(live, dict):
            yield from self._objects(where, recorded, live, asked)
        elif isinstance(recorded, list) and isinstance(live, list):
            yield from self._lists(name, where, recorded, live, asked)
        elif not self._scalar_agrees(name, recorded, live, asked):
            yield f"{where}: {recorded!r} in Kafka, {live!r} here"

    def _objects(
        self, where: str, recorded: dict[str, Json], live: dict[str, Json], asked: set[Json]
    ) -> Iterator[str]:
        for missing in recorded.keys() - live.keys():
            yield f"{where}.{missing}: {recorded[missing]!r} in Kafka, nothing here"
        for added in live.keys() - recorded.keys():
            yield f"{where}.{added}: nothing in Kafka, {live[added]!r} here"
        failed = recorded.get("errorCode", 0) != 0
        for name in (name for name in recorded if name in live):
            if failed and name == "producerId":  # unset, not the producer with that number
                if recorded[name] != live[name]:
                    yield f"{where}.{name}: {recorded[name]!r} in Kafka, {live[name]!r} here"
            else:
                yield from self._values(name, f"{where}.{name}", recorded[name], live[name], asked)

    def _lists(
        self, name: str, where: str, recorded: list[Json], live: list[Json], asked: set[Json]
    ) -> Iterator[str]:
        if len(recorded) != len(live):
            named = f": {_names(recorded)} in Kafka, {_names(live)} here"
            yield f"{where}: {len(recorded)} elements in Kafka, {len(live)} here{named}"
            return
        for one, other in zip(sorted(recorded, key=_sort_key), sorted(live, key=_sort_key), strict=True):
            label = f"{where}[{'/'.join(map(str, _sort_key(one)[1]))}]"
            yield from self._values(name, label, one, other, asked)

    def _scalar_agrees(self, name: str, recorded: Json, live: Json, asked: set[Json]) -> bool:
        if name in MASKED:
            return True
        if recorded == TEXT:
            return isinstance(live, str) and live != ""
        if name in FREE_TEXTS:
            return isinstance(live, str) and live != ""
        if name in AMOUNTS or (name in TIMES and recorded not in NOT_IDENTIFIERS):
            return isinstance(live, int) and live > 0
        kind = IDENTIFIERS.get(name)
        if kind and recorded not in NOT_IDENTIFIERS and recorded not in asked:
            return self._identifier_agrees(kind, recorded, live)
        return recorded == live

    def _identifier_agrees(self, kind: str, recorded: Json, live: Json) -> bool:
        assert isinstance(recorded, str | int)
        if type(live) is not type(recorded) or live in (ZERO_UUID, "", -1):
            return False
        assert isinstance(live, str | int)
        known = self._live_of.get((kind, recorded))
        if known is not None:
            return known == live
        if (kind, live) in self._taken:
            return False
        self._live_of[kind, recorded] = live
        self._taken.add((kind, live))
        return True


def _scalars(value: Json) -> set[Json]:
    """Everything that a request says, so that an identifier given in it is not taken for a made-up one."""
    if isinstance(value, dict):
        return set().union(*map(_scalars, value.values()))
    if isinstance(value, list):
        return set().union(*map(_scalars, value))
    return {value}


def _sort_key(value: Json) -> tuple[int, tuple[str, ...]]:
    if isinstance(value, dict):
        return 0, tuple(f"{value[key]}" for key in KEYS if key in value)
    return 1, ()  # scalars keep their order


def _names(values: list[Json]) -> str:
    return "(" + ", ".join("/".join(_sort_key(value)[1]) or str(value) for value in values)[:300] + ")"
