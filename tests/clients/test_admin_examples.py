"""The examples of the administrator's client and of the broker for tests are run, those of the docs too."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.support.own_broker import OwnBrokers
from tidelog import Producer
from tidelog.testing import Broker as InProcess

DOCS = Path(__file__).parent.parent.parent / "docs" / "clients.md"
MODULES = ["tidelog.clients.admin.client", "tidelog.clients.admin.blocking", "tidelog.testing"]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str, own_broker: OwnBrokers) -> None:
    with own_broker() as broker:
        module = importlib.import_module(name)
        failed, tried = doctest.testmod(module, extraglobs={"bootstrap": broker.bootstrap})
    assert tried > 0
    assert failed == 0


def examples(section: str) -> str:
    """The Python of a section of the docs, as one program."""
    text = DOCS.read_text()
    (found,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join(re.findall(r"```python\n(.*?)```", found, re.DOTALL))


def test_the_examples_of_the_docs_run(own_broker: OwnBrokers) -> None:
    with own_broker() as broker:
        program = examples("Admin").replace("localhost:9092", broker.bootstrap)
        exec("from tidelog import Admin\n" + program, {})


def test_the_examples_of_the_broker_for_tests_run() -> None:
    names: dict[str, object] = {}
    exec("from tidelog import Admin\n" + examples("A broker for tests"), names)
    with InProcess() as broker:
        broker.create_topic("theirs")
        test = names["test_orders"]
        assert callable(test)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            test(broker, "theirs", producer)
