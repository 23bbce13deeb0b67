"""Topics that can be used at once: Kafka answers before its brokers have heard of a new one."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.wait import eventually
from tidelog.clients.admin import Admin, ConfigResource, NewTopic, ResourceType
from tidelog.clients.admin.results import Results
from tidelog.clients.admin.topics import CreatedTopic


def topic_of_test(bootstrap: str, test: str, partitions: int = 1) -> str:
    """Create a topic that has the name of a test, as far as a topic can."""
    name = "".join(letter if letter.isalnum() else "-" for letter in test)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 1)])
    return name


def topic_configs(admin: Admin, topic: str) -> dict[str, str | None]:
    """The settings in force for a topic."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].items()}


class PatientAdmin(Admin):
    """An admin whose new topics are known to the broker that it asks, and led, when it returns."""

    def create_topics(  # type: ignore[override]
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, partial: bool = False
    ) -> Results[str, CreatedTopic]:
        wanted = list(topics)
        created = super().create_topics(wanted, validate_only=validate_only, partial=partial)
        if not validate_only:
            names = [topic.name for topic in wanted if topic.name not in created.errors]
            eventually(lambda: self._known(names), f"{', '.join(names)}: known and led", 30)
        return created

    def _known(self, names: list[str]) -> bool:
        found = self.describe_topics(names, partial=True)
        return not found.errors and all(
            partition.leader is not None for name in names for partition in found[name].partitions
        )
