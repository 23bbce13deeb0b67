"""Prints src/tidelog/clients/typed_settings.py from the definitions of the clients' settings: `make docs`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from tidelog.clients.setting_docs import client_texts
from tidelog.clients.settings import admin_definition, consumer_definition, producer_definition
from tidelog.config import ConfigKey, ConfigType
from tidelog.config.rules import EachOf, OneOf

WIDTH = 110
HEAD = '''\
"""The settings of the clients as keyword arguments, for type checkers and editors.

`make docs` prints it with packaging/typed_settings.py, from the same definitions as the documentation, and a
test holds that it is current. It is committed because a type checker reads source files and runs nothing.
Serializers and deserializers are parameters of their own, as they carry the types of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from tidelog.clients.consumer.assignors import Assignor
    from tidelog.clients.consumer.interceptors import ConsumerInterceptor
    from tidelog.clients.producer.interceptors import ProducerInterceptor
    from tidelog.config import Password'''
# Parameters of their own in the constructors.
PARAMETERS = {"key.serializer", "value.serializer", "key.deserializer", "value.deserializer"}
REQUIRED = {"bootstrap.servers"}
OBJECTS = {
    ("ClientConfig", "sasl.login.callback.handler.class"): "object",
    ("ClientConfig", "sasl.oauth.token.provider"): "object",
    ("ProducerConfig", "interceptor.classes"): "Sequence[ProducerInterceptor | type[ProducerInterceptor]]",
    ("ProducerConfig", "partitioner.class"): "object",
    ("ConsumerConfig", "interceptor.classes"): "Sequence[ConsumerInterceptor | type[ConsumerInterceptor]]",
    ("ConsumerConfig", "partition.assignment.strategy"): "str | Sequence[str | Assignor | type[Assignor]]",
}
TYPES = {
    ConfigType.BOOLEAN: "bool",
    ConfigType.DOUBLE: "float",
    ConfigType.INT: "int",
    ConfigType.LIST: "str | Sequence[str]",
    ConfigType.LONG: "int",
    ConfigType.PASSWORD: "str | Password",
    ConfigType.SHORT: "int",
    ConfigType.STRING: "str",
}


def typed_settings() -> str:
    """The source of the module."""
    texts = client_texts()
    definitions = {
        "producer": ("ProducerConfig", "`Producer` and `AsyncProducer`", producer_definition()),
        "consumer": ("ConsumerConfig", "`Consumer` and `AsyncConsumer`", consumer_definition()),
        "admin": ("AdminClientConfig", "`Admin` and `AsyncAdmin`", admin_definition()),
    }
    common = (definitions["admin"][2][name] for name in texts["common"])
    parts = [HEAD, *typed_dict("ClientConfig", "TypedDict", "every client", common, texts["common"])]
    for kind, (name, clients, definition) in definitions.items():
        own = (definition[setting] for setting in texts[kind])
        parts += typed_dict(name, "ClientConfig", clients, own, texts[kind])
    return "\n".join(parts) + "\n"


def typed_dict(
    name: str, base: str, clients: str, keys: Iterable[ConfigKey], texts: Mapping[str, str]
) -> Iterator[str]:
    yield f'\n\nclass {name}({base}, total=False):\n    """Settings of {clients}."""\n'
    for key in sorted(keys, key=lambda key: key.name):
        if key.name not in PARAMETERS:
            yield attribute(key, OBJECTS.get((name, key.name)) or type_of(key))
            yield docstring(texts[key.name])


def docstring(text: str) -> str:
    line = f'    """{text}"""'
    if len(line) <= WIDTH:
        return line
    filled = textwrap.fill(f'"""{text}', WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent(f'{filled}\n"""', "    ")


def attribute(key: ConfigKey, kind: str) -> str:
    if key.default is None and key.name not in REQUIRED and kind != "object":
        kind += " | None"
    line = f"    {key.attribute}: {kind}"
    if len(line) <= WIDTH:
        return line
    start, _, rest = line.partition("[")
    values, _, end = rest.rpartition("]")
    return f"{start}[\n        {values}\n    ]{end}"


def type_of(key: ConfigKey) -> str:
    if isinstance(key.rule, OneOf):
        return literal(key.rule)
    if isinstance(key.rule, EachOf):
        return f"str | Sequence[Literal[{', '.join(map(quoted, key.rule.values))}]]"
    return TYPES[key.type]


def literal(rule: OneOf) -> str:
    """The values as text, numbers also as numbers, and in lower case too where the case does not matter."""
    values = [quoted(value) for value in rule.values]
    if rule.any_case:
        values += [quoted(value.lower()) for value in rule.values if value.lower() not in rule.values]
    values += [value for value in rule.values if value.removeprefix("-").isdigit()]
    return f"Literal[{', '.join(values)}]"


def quoted(value: str) -> str:
    return f'"{value}"'


if __name__ == "__main__":
    print(typed_settings(), end="")
