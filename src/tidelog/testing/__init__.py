"""A broker for tests: in this process, on a free port, gone without a trace when the test ends.

>>> from tidelog.testing import Broker
>>> with Broker() as broker:
...     broker.create_topic("orders", partitions=3)
...     broker.bootstrap_servers.startswith("127.0.0.1:")
True

Any Kafka client works on it. pytest has the fixtures `tidelog_broker` and `tidelog_topic` at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    # The pytest plugin lives in this package: it must not cost every run of pytest the import of a broker.
    if name == "Broker":
        from tidelog.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
