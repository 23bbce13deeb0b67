"""A file declares a handler consumer; what is wrong with it is told with its place before anything starts."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tidelog.clients.handlers import HandlerConsumer
from tidelog.clients.handlers.consumer_file import load
from tidelog.config import ConfigError

GOOD = """\
[consumer]
bootstrap.servers = "localhost:9092"
group.id = "loggers"
max_poll_records = 50

[errors]
retries = 2
dead_letter_topic = "dead"

[topics.clicks]
streams = 4
handler = "HANDLERS:Handler"
options = { table = "clicks" }

[topics."shop.orders"]
function = "HANDLERS:handle"
retries = 0
dead_letter_topic = "dead-orders"
"""

HANDLERS = """\
class Handler:
    def __init__(self, stream):
        self.stream = stream

    def on_message(self, record):
        pass

def handle(record):
    pass

nothing = 7
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes a file, with the handlers beside it under a name that no other test uses."""
    module = f"handlers_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(HANDLERS)
    (tmp_path / f"{module}_broken.py").write_text("import no_such_module")
    (tmp_path / f"{module}_exits.py").write_text("raise SystemExit(0)")

    def write(text: str) -> Path:
        file = tmp_path / "handlers.toml"
        file.write_text(text.replace("HANDLERS", module))
        return file

    before = list(sys.path)
    yield write
    sys.path[:] = before


def test_a_file_declares_topics_streams_handlers_and_errors(write: Write) -> None:
    consumer = load(write(GOOD))
    clicks, orders = consumer.plans["clicks"], consumer.plans["shop.orders"]
    assert (clicks.streams, clicks.errors.retries, clicks.errors.dead_letter_topic) == (4, 2, "dead")
    assert (orders.streams, orders.errors.retries, orders.errors.dead_letter_topic) == (1, 0, "dead-orders")
    stream = clicks.all_streams()[3]
    assert (stream.number, stream.options) == (3, {"table": "clicks"})
    assert type(clicks.builder(stream)).__name__ == "Handler"
    assert getattr(orders.builder(stream), "__name__", "") == "handle"


def test_properties_files_of_kafka_0_8_stand_behind_what_the_file_says(write: Write, tmp_path: Path) -> None:
    (tmp_path / "consumer.properties").write_text(
        "zookeeper.connect=10.0.0.67:2181\ngroup.id=old\nauto.commit.enable=true\nauto.offset.reset=smallest\n"
    )
    (tmp_path / "producer.properties").write_text(
        "metadata.broker.list=10.0.0.82:9092\nproducer.type=async\n"
    )
    text = GOOD.replace('group.id = "loggers"', 'group.id = "new"\nproperties = "consumer.properties"')
    consumer = load(write(text + '\n[producer]\nproperties = "producer.properties"\n'))
    assert consumer._settings.group_id == "new"
    assert consumer._settings.auto_offset_reset == "earliest"
    assert [note.split("=")[0] for note in consumer.notes] == [
        "zookeeper.connect",
        "auto.commit.enable",
        "auto.offset.reset",
        "metadata.broker.list",
        "producer.type",
    ]


def test_an_override_holds_over_the_file(write: Write) -> None:
    assert load(write(GOOD), bootstrap_servers="other:1")._settings.bootstrap_servers == ("other:1",)


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("streams = 4", "stream = 4", r"topics\.clicks\.stream: not known; did you mean streams\?"),
        ("streams = 4", "streams = 0", r"topics\.clicks\.streams=0: expected a whole number, 1 or more"),
        ("streams = 4", 'streams = "4"', r"topics\.clicks\.streams='4': expected a whole number"),
        ('[topics."shop.orders"]', "[topics.shop.orders]", r"stands in quotes"),
        ("[errors]", "[error]", r"error: not known; did you mean errors\?"),
        ("retries = 2", "retries = -2", r"errors\.retries=-2: expected a whole number, 0 or more"),
        ("retries = 2", "tries = 2", r"errors\.tries: not known; did you mean retries\?"),
        ("retries = 0", 'retries = "x"', r"topics\.shop\.orders\.retries='x': expected a whole number"),
        ('"dead-orders"', '"shop.orders"', r"dead_letter_topic=shop\.orders: expected another topic"),
        ("HANDLERS:Handler", "HANDLERS", r"clicks\.handler=handlers_\w+: expected package\.module:name"),
        ("HANDLERS:Handler", "HANDLERS:Missing", r"handlers_\w+ has no Missing"),
        ("HANDLERS:Handler", "HANDLERS:nothing", r"expected something to call, not int"),
        ("HANDLERS:Handler", "no_module_here:x", r"no_module_here cannot be imported: ModuleNotFoundError"),
        ("HANDLERS:Handler", "HANDLERS_broken:x", r"_broken cannot be imported: .*no_such_module"),
        ("HANDLERS:Handler", "HANDLERS_exits:x", r"_exits cannot be imported: SystemExit: 0"),
        ("HANDLERS:handle", "HANDLERS:Handler", r"orders\.function=.*: expected a function of a record"),
        ('handler = "HANDLERS:Handler"', "", r"topics\.clicks: expected one of handler"),
        ('group.id = "loggers"', "", r"group\.id: needed"),
        ('bootstrap.servers = "localhost:9092"', "", r"bootstrap\.servers: needed"),
        ("max_poll_records = 50", "max_poll_records = 0", r"max\.poll\.records=0"),
        ("max_poll_records = 50", 'properties = "gone"', r"gone: cannot be read"),
        ("[consumer]", "[consumer", r"handlers\.toml: is no TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line_with_its_place(
    write: Write, wrong: str, right: str, message: str
) -> None:
    assert wrong in GOOD
    with pytest.raises(ConfigError, match=message) as raised:
        load(write(GOOD.replace(wrong, right, 1)))
    assert "\n" not in str(raised.value)


def test_a_file_without_topics_is_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="topics: needed"):
        load(write(GOOD.partition("[topics")[0]))


# The documentation

DOCUMENT = Path(__file__).parents[2] / "docs" / "handlers.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


def test_the_file_in_the_documentation_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all-log-consumer.properties").write_text("zookeeper.sync.time.ms=2000\n")
    (tmp_path / "kafka-producer-async.properties").write_text("producer.type=async\n")
    module = ModuleType("shop.handlers")
    vars(module).update(LogHandler=lambda stream: print, send_mail=print)
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.handlers", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (text,) = blocks("toml")
    (tmp_path / "handlers.toml").write_text(text)
    consumer = load(tmp_path / "handlers.toml")
    assert [(plan.topic, plan.streams) for plan in consumer.plans.values()] == [
        ("ml_obtain_credit_log", 4),
        ("shop.orders", 1),
    ]
    assert len(consumer.notes) == 2


def test_the_code_in_the_documentation_declares_a_consumer() -> None:
    first, second, asynchronous, _ = blocks("python")
    names: dict[str, object] = {}
    exec(first.replace("consumer.run()", "") + second + asynchronous, names)
    assert inspect.iscoroutinefunction(names["build"])
    consumer = names["consumer"]
    assert isinstance(consumer, HandlerConsumer)
    assert {plan.topic: plan.streams for plan in consumer.plans.values()} == {"orders": 4, "clicks": 2}
