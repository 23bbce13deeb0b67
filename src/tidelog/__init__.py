"""tidelog: a distributed commit log that speaks Kafka's protocol and keeps Kafka's files.

The clients are imported when they are first asked for: `from tidelog import Producer`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.clients.adminclient.blocking import Admin as Admin
    from tidelog.clients.adminclient.client import AsyncAdmin as AsyncAdmin
    from tidelog.clients.adminclient.topics import NewTopic as NewTopic
    from tidelog.clients.consumer.blocking import Consumer as Consumer
    from tidelog.clients.consumer.consumer import AsyncConsumer as AsyncConsumer
    from tidelog.clients.consumer.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from tidelog.clients.consumer.listener import RebalanceListener as RebalanceListener
    from tidelog.clients.handlers.consumer import HandlerConsumer as HandlerConsumer
    from tidelog.clients.handlers.plan import ErrorPolicy as ErrorPolicy
    from tidelog.clients.handlers.plan import Reject as Reject
    from tidelog.clients.producer.blocking import Producer as Producer
    from tidelog.clients.producer.interceptors import ProducerInterceptor as ProducerInterceptor
    from tidelog.clients.producer.interceptors import ProducerRecord as ProducerRecord
    from tidelog.clients.producer.producer import AsyncProducer as AsyncProducer
    from tidelog.clients.producer.transaction_values import GroupMember as GroupMember
    from tidelog.clients.producer.transaction_values import OffsetToCommit as OffsetToCommit
    from tidelog.clients.producer.transaction_values import PreparedTransaction as PreparedTransaction
    from tidelog.partitions import TopicPartition as TopicPartition
    from tidelog.records.loops import Record as Record
    from tidelog.records.loops import RecordMetadata as RecordMetadata

__version__ = "0.1.0"

_CLIENTS = {
    "Admin": "tidelog.clients.adminclient.blocking",
    "AsyncAdmin": "tidelog.clients.adminclient.client",
    "AsyncConsumer": "tidelog.clients.consumer.consumer",
    "AsyncProducer": "tidelog.clients.producer.producer",
    "Consumer": "tidelog.clients.consumer.blocking",
    "ConsumerInterceptor": "tidelog.clients.consumer.interceptors",
    "ErrorPolicy": "tidelog.clients.handlers.plan",
    "GroupMember": "tidelog.clients.producer.transaction_values",
    "HandlerConsumer": "tidelog.clients.handlers.consumer",
    "NewTopic": "tidelog.clients.adminclient.topics",
    "OffsetToCommit": "tidelog.clients.producer.transaction_values",
    "PreparedTransaction": "tidelog.clients.producer.transaction_values",
    "Producer": "tidelog.clients.producer.blocking",
    "ProducerInterceptor": "tidelog.clients.producer.interceptors",
    "ProducerRecord": "tidelog.clients.producer.interceptors",
    "RebalanceListener": "tidelog.clients.consumer.listener",
    "Record": "tidelog.records.loops",
    "RecordMetadata": "tidelog.records._pure_client",
    "Reject": "tidelog.clients.handlers.plan",
    "TopicPartition": "tidelog.clients.consumer.partitions",
}


def __getattr__(name: str) -> object:
    if name in _CLIENTS:
        return getattr(import_module(_CLIENTS[name]), name)
    raise AttributeError(f"module 'tidelog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLIENTS})
