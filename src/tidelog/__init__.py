"""tidelog: a distributed commit log that speaks Kafka's protocol and keeps Kafka's files.

The clients are imported when they are first asked for: `from tidelog import Producer`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.clients.producer.face import Producer as Producer
    from tidelog.clients.producer.interceptors import ProducerInterceptor as ProducerInterceptor
    from tidelog.clients.producer.interceptors import ProducerRecord as ProducerRecord
    from tidelog.clients.producer.producer import AsyncProducer as AsyncProducer
    from tidelog.clients.producer.transaction_values import PreparedTransaction as PreparedTransaction
    from tidelog.records._pure_client import RecordMetadata as RecordMetadata

__version__ = "0.1.0"

_CLIENTS = {
    "AsyncProducer": "tidelog.clients.producer.producer",
    "PreparedTransaction": "tidelog.clients.producer.transaction_values",
    "Producer": "tidelog.clients.producer.face",
    "ProducerInterceptor": "tidelog.clients.producer.interceptors",
    "ProducerRecord": "tidelog.clients.producer.interceptors",
    "RecordMetadata": "tidelog.records._pure_client",
}


def __getattr__(name: str) -> object:
    if name in _CLIENTS:
        return getattr(import_module(_CLIENTS[name]), name)
    raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
