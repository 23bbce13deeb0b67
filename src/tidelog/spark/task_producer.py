"""The producer of a task of the exactly-once sink: its transaction is open as long as the broker allows."""

from __future__ import annotations

import logging

from tidelog.clients.producer.blocking import Producer
from tidelog.errors import InvalidTransactionTimeout, TransactionalIdAuthorizationFailed
from tidelog.spark.options import OptionError, SinkOptions
from tidelog.spark.sink import producer_config
from tidelog.spark.transactions import TWO_PHASE, Limits

log = logging.getLogger("tidelog.spark")


def task_producer(
    options: SinkOptions, limits: Limits, transactional_id: str, *, two_phase: bool
) -> Producer:
    """An initialized producer. With `two_phase` it has no transaction time-out, if the broker allows that."""
    client = producer_config(options.client)
    wanted = client.pop(TWO_PHASE, "true").strip().lower() == "true"
    if "transaction.timeout.ms" in client:
        return _started_as_asked(client, transactional_id, limits)
    if two_phase and wanted and limits.two_phase:
        try:
            return _started({**client, TWO_PHASE: "true"}, transactional_id)
        except TransactionalIdAuthorizationFailed as error:
            log.warning("no two-phase commit for %s: %s", transactional_id, error)
    return _started_with_timeout(client, transactional_id, limits)


def _started_as_asked(client: dict[str, str], transactional_id: str, limits: Limits) -> Producer:
    try:
        return _started(client, transactional_id)
    except InvalidTransactionTimeout as error:
        raise OptionError(
            f"kafka.transaction.timeout.ms={client['transaction.timeout.ms']}: the broker allows no more"
            f" than its transaction.max.timeout.ms, which it reports as {limits.timeout_ms}"
        ) from error


def _started_with_timeout(client: dict[str, str], transactional_id: str, limits: Limits) -> Producer:
    timeout = limits.timeout_ms
    while True:
        try:
            return _started({**client, "transaction.timeout.ms": str(timeout)}, transactional_id)
        except InvalidTransactionTimeout:
            # The broker did not report its limit, and the limit is below Kafka's default.
            if timeout < 1000:
                raise
            timeout //= 2


def _started(settings: dict[str, str], transactional_id: str) -> Producer:
    producer = Producer({**settings, "transactional.id": transactional_id})
    try:
        producer.init_transactions()
    except BaseException:
        producer.close(0)
        raise
    return producer
