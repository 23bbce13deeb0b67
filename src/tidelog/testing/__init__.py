"""A broker for tests: in this process, on a free port, removed with its data when the test ends.

>>> from tidelog.testing import Broker
>>> with Broker() as broker:
...     written = broker.produce("orders", b"one apple", b"two pears", key=b"alice")
...     [record.value for record in broker.records("orders")]
[b'one apple', b'two pears']

Any Kafka client works on it. pytest finds the fixtures `tidelog_broker`, `tidelog_topic`, `tidelog_producer`,
`tidelog_consumer` and `tidelog_pipeline` without an import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    # Every run of pytest imports the plugin, which is in this package, but not every run needs a broker.
    if name == "Broker":
        from tidelog.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
