"""Lets the clients of this process log in at brokers that have security, without a word in each test.

Each client library gets what `secure` says for the address that a test gave it. `install` comes before the
tests' modules are imported: they take the classes of confluent-kafka by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tests.support import secure

LIBRARIES = ("tidelog", "confluent-kafka", "kafka-python", "aiokafka")


def install(*libraries: str) -> None:
    """Of these libraries, or of all."""
    for library in libraries or LIBRARIES:
        _INSTALL[library]()


def install_if_secured(*libraries: str) -> None:
    """The same in a process of its own, if the brokers of this run have security."""
    if secure.is_secured():
        install(*libraries)


def _install_tidelog() -> None:
    from tidelog.clients import settings

    given = settings.with_keywords

    def with_keywords(config: Mapping[str, object] | None, named: Mapping[str, object]) -> dict[str, object]:
        found = given(config, named)
        if "security.protocol" in found or not secure.is_secured_address(found.get("bootstrap.servers")):
            return found
        return {**found, **secure.properties()}

    settings.with_keywords = with_keywords


def _install_confluent() -> None:
    import confluent_kafka
    from confluent_kafka import admin

    def settled(config: Mapping[str, Any]) -> dict[str, Any]:
        bootstrap = config.get("bootstrap.servers")
        if "security.protocol" in config or not secure.is_secured_address(bootstrap):
            return dict(config)
        return {**config, **secure.confluent_settings()}

    class Producer(confluent_kafka.Producer):
        def __init__(self, *args: Mapping[str, Any], **options: Any) -> None:
            super().__init__(*map(settled, args[:1]), *args[1:], **options)

    class Consumer(confluent_kafka.Consumer):
        def __init__(self, *args: Mapping[str, Any], **options: Any) -> None:
            super().__init__(*map(settled, args[:1]), *args[1:], **options)

    confluent_kafka.Producer = Producer  # type: ignore[misc]
    confluent_kafka.Consumer = Consumer  # type: ignore[misc]
    begin = admin.AdminClient.__init__

    @functools.wraps(begin)
    def begin_settled(self: admin.AdminClient, conf: Mapping[str, Any], **options: Any) -> None:
        begin(self, settled(conf), **options)

    admin.AdminClient.__init__ = begin_settled  # type: ignore[method-assign]


def _install_kafka_python() -> None:
    import kafka

    for kind in (kafka.KafkaProducer, kafka.KafkaConsumer, kafka.KafkaAdminClient):
        _wrap(kind, secure.kafka_python_settings)


def _install_aiokafka() -> None:
    import aiokafka
    import aiokafka.admin

    for kind in (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer, aiokafka.admin.AIOKafkaAdminClient):
        _wrap(kind, secure.aiokafka_settings)


def _wrap(kind: type, settings: Callable[[], Mapping[str, object]]) -> None:
    begin = kind.__init__  # type: ignore[misc]

    @functools.wraps(begin)
    def begin_settled(self: object, *args: object, **options: Any) -> None:
        if secure.is_secured_address(options.get("bootstrap_servers")):
            options = {**settings(), **options}
        begin(self, *args, **options)

    kind.__init__ = begin_settled  # type: ignore[misc]


_INSTALL: Mapping[str, Callable[[], None]] = {
    "tidelog": _install_tidelog,
    "confluent-kafka": _install_confluent,
    "kafka-python": _install_kafka_python,
    "aiokafka": _install_aiokafka,
}
