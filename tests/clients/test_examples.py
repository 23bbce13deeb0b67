"""The examples in the documentation of the clients are run."""

from __future__ import annotations

import doctest
import importlib

import pytest

import tidelog

MODULES = [
    "tidelog.clients.settings",
    "tidelog.security.cipher_suites",
    "tidelog.security.jaas",
    "tidelog.security.pem",
    "tidelog.clients.serialization",
    "tidelog.clients.consumer.assignors",
    "tidelog.clients.consumer.consumer",
    "tidelog.clients.consumer.blocking",
    "tidelog.clients.consumer.positions",
    "tidelog.clients.producer.producer",
    "tidelog.clients.producer.blocking",
    "tidelog.testing",
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str, bootstrap: str) -> None:
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module, extraglobs={"bootstrap": bootstrap})
    assert tried > 0
    assert failed == 0


def test_everything_that_the_package_offers_is_shown_and_found() -> None:
    assert {"Producer", "Consumer", "Admin", "OffsetAndMetadata", "ConsumerGroupMetadata"} <= set(
        dir(tidelog)
    )
    for name in dir(tidelog):
        assert getattr(tidelog, name) is not None or name.startswith("__")
