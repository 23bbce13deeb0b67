"""The reference pages that are made from code when the site is built: the tools, the metrics, the Python API.

    python packaging/reference.py cli|metrics|api

They are not kept in the repository: `make docs` makes them, and tests hold that nothing is missing on them.
"""

from __future__ import annotations

import inspect
import re
import socket
import sys
import urllib.request
from collections.abc import Iterator
from typing import ForwardRef, is_typeddict

import click

CLI_INTRODUCTION = """\
# Tools

Every tool is a command of `tidelog`. The tools with a name of Kafka's have the flags and the output of
Kafka's. `tidelog TOOL --help` prints the same texts. [Exit codes](../exit-codes.md) has one table for all.
"""

METRICS_INTRODUCTION = """\
# Metrics

A broker serves these metrics at `/metrics`, once `metrics.listener=HOST:PORT` is set. Their names are those
of Strimzi's rules for the JMX exporter and of kafka_exporter, so dashboards for Kafka work. Kafka's
documentation explains a metric under the MBean in the last column.
[Metrics, lag, traces](../metrics.md) has an overview, other dialects of the names, and the health check.
"""

API_INTRODUCTION = """\
# Python API

The public names of `tidelog` and `tidelog.testing`. [The Python clients](../clients.md) introduces them with
examples, and [Client settings](../client-settings.md) lists what the clients can be given.
"""

TYPED = """\
Type checkers take keyword settings by these types. [Client settings](../client-settings.md) explains the
settings.
"""

SENT = """\
All are subclasses of `tidelog.KafkaError`. Kafka's documentation of the protocol explains the errors.
"""


def cli_page() -> str:
    """Every tool with its flags."""
    from tidelog.cli.main import TOOLS, main

    top = click.Context(main, info_name="tidelog")
    parts = [CLI_INTRODUCTION, "| tool | what it does |", "|---|---|"]
    parts += [f"| [`{name}`](#{name}) | {tool.summary} |" for name, tool in TOOLS.items()]
    for name in TOOLS:
        command = main.get_command(top, name)
        assert command is not None
        parts += _command(click.Context(command, info_name=name, parent=top), "##", name)
    return "\n".join(parts) + "\n"


def _command(context: click.Context, heading: str, title: str) -> Iterator[str]:
    command = context.command
    yield f"\n{heading} {title}\n"
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield _paragraphs(command.help or "")
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    if options:
        yield "\n| flag | meaning | default |"
        yield "|---|---|---|"
    for option in options:
        default = option.to_info_dict()["default"]
        shown = f"`{default}`" if default not in (None, False, (), "") and not callable(default) else ""
        yield f"| {_flag(option, context)} | {_cell(option.help or '')} | {_cell(shown)} |"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            inner = click.Context(child, info_name=name, parent=context)
            yield from _command(inner, "###", f"{title} {name}")


def _flag(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    return f"{names} {_cell(option.make_metavar(context))}"


def metrics_page() -> str:
    """Every metric of a broker that has a topic, a group, a transaction and a listener with TLS."""
    parts = [METRICS_INTRODUCTION, "| metric | type | labels | what it is |", "|---|---|---|---|"]
    for name, (kind, text, labels) in sorted(metrics().items()):
        shown = ", ".join(f"`{label}`" for label in labels)
        parts.append(f"| `{name}` | {kind} | {shown} | {_metric_text(text)} |")
    return "\n".join(parts) + "\n"


def _metric_text(text: str) -> str:
    bean, comma, rest = text.partition(", ")
    return f"`{bean}`{comma}{rest}" if text.startswith("kafka.") else _cell(text)


def metrics() -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """Type, text and labels of each metric, as a running broker serves them."""
    text = _scrape()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    texts = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    labels: dict[str, dict[str, None]] = {name: {} for name in kinds}
    for name, given in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        labels[name].update(dict.fromkeys(re.findall(r'(\w+)="', given)))
    return {name: (kinds[name], texts[name], tuple(labels[name])) for name in kinds}


def _scrape() -> str:
    from tidelog import Consumer, OffsetAndMetadata, Producer
    from tidelog.testing import Broker

    address = f"127.0.0.1:{_free_port()}"
    with Broker({**_tls_settings(), "metrics.listener": address}) as broker:
        servers = {"bootstrap_servers": broker.bootstrap_servers}
        broker.create_topic("orders")
        with Producer(**servers, transactional_id="till") as producer, producer.transaction():
            producer.send("orders", b"tea")
            producer.send_offsets_to_transaction({("orders", 0): OffsetAndMetadata(0)}, "till")
        with Consumer("orders", **servers, group_id="kitchen", auto_offset_reset="earliest") as consumer:
            consumer.poll(10)
            consumer.commit()
            with urllib.request.urlopen(f"http://{address}/metrics") as answer:
                text: str = answer.read().decode()
                return text


def _tls_settings() -> dict[str, object]:
    """A second listener, with TLS and a certificate of its own."""
    from tidelog.security.certificates import CertificateAuthority

    authority = CertificateAuthority.create("reference", days=1)
    pair = authority.broker("reference", ["127.0.0.1"])
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": pair.key_pem().decode(),
        "ssl.keystore.certificate.chain": pair.certificate_pem().decode(),
    }


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def api_page() -> str:
    """Every public name with its signature and docstring."""
    import tidelog
    import tidelog.testing

    public = {name: getattr(tidelog, name) for name in tidelog.__all__ if not name.startswith("__")}
    errors = {name: kind for name, kind in public.items() if issubclass(kind, Exception)}
    typed = {name: kind for name, kind in public.items() if is_typeddict(kind)}
    parts = [API_INTRODUCTION, "## Classes\n"]
    for name, kind in public.items():
        if name not in errors and name not in typed:
            parts += _class(name, kind)
    parts.append("## The broker for tests\n")
    for name in tidelog.testing.__all__:
        parts += _class(f"testing.{name}", getattr(tidelog.testing, name))
    parts += ["## Types of settings\n", TYPED]
    parts += [f"- `{name}`: {_docstring(kind)}" for name, kind in typed.items()]
    return "\n".join([*parts, *_errors(errors)]) + "\n"


def _errors(errors: dict[str, type]) -> Iterator[str]:
    """Errors of the clients with their texts, and those of brokers with their codes."""
    from tidelog.errors import ErrorCode

    names = {code.value: code.name for code in ErrorCode}
    sent = {name: kind for name, kind in errors.items() if kind.__module__ == "tidelog.errors"}
    yield "\n## Errors of the clients\n"
    yield "| class | meaning |"
    yield "|---|---|"
    for name, kind in errors.items():
        if name not in sent:
            yield f"| `{name}` | {_cell(inspect.getdoc(kind) or '')} |"
    yield f"\n## Errors that brokers send\n\n{SENT}"
    yield "| class | error | code |"
    yield "|---|---|---|"
    for name, kind in sent.items():
        code = vars(kind).get("code")
        shown = f"{names[code]} | {code}" if code is not None else "a base class |"
        yield f"| `{name}` | {shown} |"


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield _code(f"class {name}{_signature(kind)}")
    yield f"{_docstring(kind)}\n"
    attributes = [name for name, value in vars(kind).items() if _is_attribute(name, value)]
    if attributes:
        yield f"Attributes: {', '.join(f'`{name}`' for name in attributes)}.\n"
    for member, value in _members(kind):
        yield f"#### {name}.{member}\n"
        if isinstance(value, property):
            yield _code(f"{member}: {_returns(value)}")
        else:
            word = "async def" if inspect.iscoroutinefunction(value) else "def"
            yield _code(f"{word} {member}{_signature(value)}")
        yield f"{_docstring(value)}\n"


def _is_attribute(name: str, value: object) -> bool:
    described = inspect.isgetsetdescriptor(value) or inspect.ismemberdescriptor(value)
    return not name.startswith("_") and (described or type(value).__name__ == "_tuplegetter")


def _members(kind: type) -> Iterator[tuple[str, object]]:
    """Public methods and properties in the order of the code, those of base classes behind."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("tidelog"):
            continue
        for name, value in vars(base).items():
            shown = isinstance(value, property) or inspect.isroutine(value)
            if shown and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _returns(value: property) -> str:
    hints = getattr(value.fget, "__annotations__", {})
    return _type(hints.get("return", "object"))


def _signature(value: object) -> str:
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""  # compiled, or an exception
    texts: list[str] = []
    last = None
    for parameter in signature.parameters.values():
        named = parameter.KEYWORD_ONLY
        if parameter.kind is named and last not in (named, parameter.VAR_POSITIONAL):
            texts.append("*")
        if last is parameter.POSITIONAL_ONLY and parameter.kind is not last:
            texts.append("/")
        texts.append(_parameter(parameter))
        last = parameter.kind
    given = signature.return_annotation
    after = "" if isinstance(value, type) or given is signature.empty else f" -> {_type(given)}"
    line = f"({', '.join(texts)}){after}"
    return line if len(line) < 90 else "(\n    " + ",\n    ".join(texts) + f",\n){after}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        shown = re.sub(r"<([\w.]+)[^>]*>", r"\1", repr(parameter.default).replace("<factory>", "..."))
        text += f" = {shown}"
    return text


def _type(annotation: object) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _docstring(value: object) -> str:
    return _paragraphs(inspect.getdoc(value) or "")


def _paragraphs(text: str) -> str:
    """Plain text as Markdown: examples become blocks, and nothing is taken for markup."""
    text = inspect.cleandoc(text).replace("\b", "")
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        if block.lstrip().startswith(">>>") or block.startswith("  "):
            blocks.append(f"```text\n{block}\n```")
        else:
            blocks.append(_escaped(block))
    return "\n\n".join(blocks)


def _escaped(text: str) -> str:
    """Text whose < and * are themselves, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")
        for part in parts
    )


def _cell(text: str) -> str:
    return _escaped(text.replace("\n", " ")).replace("|", "\\|")


PAGES = {"reference/cli.md": cli_page, "reference/metrics.md": metrics_page, "reference/api.md": api_page}

if __name__ == "__main__":
    print(PAGES[f"reference/{sys.argv[1]}.md"](), end="")
