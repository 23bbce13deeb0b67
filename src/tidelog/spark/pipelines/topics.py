"""The topics of a run: missing topics of sinks are created, topics of sources have to exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.declare import Flow, Topic

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, NewTopic


class MissingTopics(ValueError):
    """A topic that a flow reads does not exist."""


def prepare_topics(
    flows: Iterable[Flow], bootstrap: str, client: Mapping[str, str], *, create_sources: bool = False
) -> list[str]:
    """Create missing topics if that is allowed; returns their names."""
    from tidelog.clients.admin import Admin, NewTopic
    from tidelog.spark.contact import first_contact
    from tidelog.spark.options import BOOTSTRAP_TIMEOUT_MS

    flows = tuple(flows)
    settings: dict[str, object] = {"default.api.timeout.ms": "15000", **client}
    first_contact({**client, "bootstrap.servers": bootstrap}, BOOTSTRAP_TIMEOUT_MS)
    with Admin(settings, bootstrap_servers=bootstrap) as admin:
        there = set(admin.list_topics(list_internal=True))
        wanted = {
            sink.name: NewTopic(sink.name, configs={"cleanup.policy": "compact"} if sink.compacted else {})
            for flow in flows
            for sink in flow.sinks
            if isinstance(sink, Topic)
        }
        missing = {
            topic: NewTopic(topic)
            for flow in flows
            for topic in flow.source.topics
            if topic not in there and topic not in wanted
        }
        if missing and not create_sources:
            raise MissingTopics(missing_text(sorted(missing), bootstrap))
        return _make(admin, [new for name, new in (wanted | missing).items() if name not in there])


def _make(admin: Admin, topics: list[NewTopic]) -> list[str]:
    from tidelog.errors import TopicAlreadyExists

    if not topics:
        return []
    results = admin.create_topics(topics, partial=True)
    for error in results.errors.values():
        if not isinstance(error, TopicAlreadyExists):  # another process created it meanwhile
            raise error
    return sorted(results)


def missing_text(names: list[str], bootstrap: str) -> str:
    what = f"topic {names[0]} is" if len(names) == 1 else f"topics {', '.join(names)} are"
    return (
        f"{what} not on {bootstrap}; `tidelog generate` creates the topics of the pipelines and fills them, "
        f"`tidelog topics --bootstrap-server {bootstrap} --create --topic {names[0]}` creates one, "
        "--create-topics creates the missing ones"
    )
