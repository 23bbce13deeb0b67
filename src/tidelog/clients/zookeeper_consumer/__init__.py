"""The consumer of Kafka 0.8 and 0.9 that coordinates its group in ZooKeeper, without a broker.

`ConsumerConnector` blocks, `AsyncConsumerConnector` awaits; both do the same. New programs use
`tidelog.Consumer`: see docs/zookeeper-consumer.md for the reasons.
"""

from __future__ import annotations
