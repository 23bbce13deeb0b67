"""The documentation of the settings, and the page of `tidelog config-docs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from tidelog.config.definition import ConfigDef, ConfigKey, Dynamic
from tidelog.server.config import broker_docs, broker_docs_not_served, topic_docs
from tidelog.server.config.broker_definition import broker_definition, internal_topic_settings
from tidelog.server.config.topic import topic_definition

INTRODUCTION = """\
# Settings

A broker reads its settings from a file in Java's properties format, `tidelog start server.properties`, and
from the command line, `--override name=value`, which takes precedence. A `server.properties` of Kafka 3.9 or
4.3 works unchanged: the broker knows every setting of Kafka. It refuses an invalid value, and says what is
allowed. At start it logs a line for each setting that changes nothing here, and for each unknown name.

*Changes* says whether a setting can change while the broker runs: `broker` for this broker, `all` for this
broker or for all brokers at once, `-` not at all. Topic settings can always change. With the prefix
`listener.name.NAME.`, `max.connections` and `max.connection.creation.rate` are limits of one listener, and
settings of TLS (`ssl.*`) and SASL count for that listener alone.
"""

KAFKA_FILES = """\
Besides these:

- `node.id`, `process.roles` and `controller.listener.names` may be missing. `node.id` counts as `broker.id`.
  The broker leaves out the listeners in `controller.listener.names`.
- With `zookeeper.connect` the broker joins a cluster. Settings that only a cluster has, such as
  `controlled.shutdown.enable`, change nothing without it.
- The broker refuses a listener whose name is not in `listener.security.protocol.map`.
"""


@cache
def broker_texts() -> dict[str, str]:
    return dict(_texts(broker_docs.SERVED)) | dict(_texts(broker_docs_not_served.NOT_SERVED))


@cache
def topic_texts() -> dict[str, str]:
    return dict(_texts(topic_docs.TOPIC))


def _texts(table: str) -> Iterator[tuple[str, str]]:
    """The name and text of each setting; an indented line continues the text above it."""
    for entry in table.replace("\n  ", " ").splitlines():
        name, _, text = entry.partition(": ")
        yield name, text


def markdown() -> str:
    """The whole page."""
    broker, topic = broker_definition(), topic_definition()
    parts = [
        INTRODUCTION,
        "## Defaults that differ from Kafka's\n",
        *_differences(broker),
        "",
        KAFKA_FILES,
        "## Settings that Kafka does not have\n",
        *_table((key for key in broker.values() if key.ours), broker_texts()),
        "\n## Broker settings\n",
        *_table((key for key in broker.values() if key.served and not key.ours), broker_texts()),
        "\n## Topic settings\n",
        *_table((key for key in topic.values() if key.served), topic_texts(), topic=True),
        "\n## Settings that change nothing\n",
        "The broker accepts, checks and shows them as Kafka does. The texts say what they do in Kafka.",
        *_not_served("topic settings", topic, topic_texts(), topic=True),
        *_not_served("broker settings", broker, broker_texts()),
    ]
    return "\n".join(parts) + "\n"


def _differences(broker: ConfigDef) -> Iterator[str]:
    yield "| setting | here | in Kafka |"
    yield "|---|---|---|"
    for key in broker.values():
        if key.kafka_default is not None:
            yield f"| `{key.name}` | `{key.default}` | `{key.kafka_default}` |"
    for name in internal_topic_settings():
        yield f"| `{name}` | `1` without `zookeeper.connect` | `{broker[name].default}` |"


def _table(keys: Iterable[ConfigKey], texts: dict[str, str], *, topic: bool = False) -> Iterator[str]:
    last = "broker's default" if topic else "changes"
    yield f"| setting | what it does | type | default | allowed | importance | {last} |"
    yield "|---|---|---|---|---|---|---|"
    for key in keys:
        note = ", ".join(f"`{name}`" for name in key.synonyms) if topic else _changes(key)
        allowed = _escaped(key.rule.allowed()) if key.rule is not None else ""
        yield (
            f"| `{key.name}` | {_escaped(texts[key.name])} | {key.type.name.lower()} | {_default(key)} "
            f"| {allowed} | {key.importance.value} | {note} |"
        )


def _changes(key: ConfigKey) -> str:
    return {Dynamic.READ_ONLY: "-", Dynamic.PER_BROKER: "broker", Dynamic.CLUSTER_WIDE: "all"}[key.dynamic]


def _default(key: ConfigKey) -> str:
    if key.name in internal_topic_settings():
        return f"`{key.default}`, alone `1`"
    return "" if key.default is None else f"`{key.default}`" if key.default else "empty"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def _not_served(
    kind: str, definition: ConfigDef, texts: dict[str, str], *, topic: bool = False
) -> Iterator[str]:
    by_reason: dict[str, list[ConfigKey]] = {}
    for key in definition.values():
        if key.reason is not None:
            by_reason.setdefault(key.reason, []).append(key)
    for reason, keys in by_reason.items():
        yield f"\n### {reason[0].upper()}{reason[1:]} ({kind})\n"
        yield from _table(keys, texts, topic=topic)
