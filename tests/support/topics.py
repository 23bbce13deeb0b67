"""Topics that can be used at once: Kafka answers before its brokers have heard of a new one."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.wait import eventually
from tidelog.clients.adminclient import Admin, NewTopic
from tidelog.clients.adminclient.results import Results
from tidelog.clients.adminclient.topics import CreatedTopic


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
