"""The examples of the administrator's client and of the broker for tests are run, those of the docs too."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tidelog.testing import Broker as InProcess

DOCS = Path(__file__).parent.parent.parent / "docs" / "clients.md"
MODULES = ["tidelog.clients.adminclient.client", "tidelog.clients.adminclient.face", "tidelog.testing"]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        module = importlib.import_module(name)
        failed, tried = doctest.testmod(module, extraglobs={"bootstrap": broker.bootstrap})
    assert tried > 0
    assert failed == 0


def examples(section: str) -> str:
    """The Python of a section of the docs, as one program."""
    text = DOCS.read_text()
    (found,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join(re.findall(r"```python\n(.*?)```", found, re.DOTALL))


@pytest.mark.parametrize("section", ["Admin", "A broker for tests"])
def test_the_examples_of_the_docs_run(section: str) -> None:
    with InProcess() as broker:
        program = examples(section).replace("localhost:9092", broker.bootstrap_servers)
        names: dict[str, object] = {}
        exec("from tidelog import Admin\n" + program, names)
        if section == "A broker for tests":
            broker.create_topic("theirs")
            test = names["test_orders"]
            assert callable(test)
            test(broker, "theirs")
