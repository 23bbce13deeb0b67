"""The cluster as the driver sees it: the partitions of topics, and their first and last offsets.

A Cluster keeps one connection to a broker and joins no group. A lookup costs one Metadata request, and one
ListOffsets request for each leader. Retriable errors are retried as `fetchOffset.numRetries` and
`fetchOffset.retryIntervalMs` say, each time on new connections.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Set
from concurrent.futures import Future, wait
from typing import TypeVar

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.results import error_from
from tidelog.clients.blocking import LoopThread
from tidelog.clients.settings import admin_definition
from tidelog.errors import KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition
from tidelog.partitions import PartitionKey
from tidelog.spark.client_options import on_this_machine
from tidelog.spark.contact import first_contact
from tidelog.spark.options import (
    Assign,
    Offsets,
    OptionError,
    Selection,
    SourceOptions,
    Subscribe,
    SubscribePattern,
)

log = logging.getLogger("tidelog.spark")

T = TypeVar("T")


class OffsetAdmin(AsyncAdmin):
    """An admin that looks up the partitions of topics in one request."""

    async def partitions(self, names: Set[str] | None) -> tuple[set[PartitionKey], set[str]]:
        """The partitions of topics, and the names that do not exist. `names=None` stands for all topics.

        Internal topics have no partitions here, as in Spark's connector.
        """
        deadline = self.driver.deadline(None)
        answer = await self.driver.metadata(None if names is None else sorted(names), deadline)
        found: set[PartitionKey] = set()
        missing: set[str] = set()
        for topic in answer.topics:
            name = topic.name or ""
            error = error_from(topic.error_code, None, f"topic {name!r}")
            if isinstance(error, UnknownTopicOrPartition):
                missing.add(name)
            elif error is not None and not (names is None and isinstance(error, TopicAuthorizationFailed)):
                raise error
            elif not topic.is_internal:
                found |= {(name, partition.partition_index) for partition in topic.partitions}
        return found, missing


class AdminLink:
    """One admin on its own thread, created on first use. After `close` the next use creates another."""

    _opening = threading.Lock()
    """The flows of a run share a link and begin at the same time. Of the class: Spark pickles links."""

    def __init__(self, client: Mapping[str, str]) -> None:
        names = admin_definition()
        self._settings = {name: value for name, value in on_this_machine(client).items() if name in names}
        self._open: tuple[LoopThread, OffsetAdmin] | None = None
        self._waiting: dict[str, Offsets] = {}
        """Positions to commit after the running commit, by group. Only the event loop uses it."""

    def run(self, ask: Callable[[OffsetAdmin], Coroutine[object, object, T]]) -> T:
        thread, admin = self._opened()
        return thread.run(ask(admin))

    def submit(self, ask: Callable[[OffsetAdmin], Coroutine[object, object, T]]) -> Future[T]:
        """Start a request and return its future."""
        thread, admin = self._opened()
        return thread.submit(ask(admin))

    def commit(
        self, group: str, offsets: Mapping[PartitionKey, int], failed: Callable[[str], None], patience: float
    ) -> None:
        """Commit the position of a group. After `patience` seconds the commit continues in the background.

        A failure calls `failed`. An older position is never committed after a newer one.
        """
        thread, admin = self._opened()
        writing = thread.submit(self._write(admin, group, offsets, failed))
        if patience > 0:
            wait([writing], patience)

    async def _write(
        self,
        admin: OffsetAdmin,
        group: str,
        offsets: Mapping[PartitionKey, int],
        failed: Callable[[str], None],
    ) -> None:
        waiting = self._waiting.get(group)
        if waiting is not None:
            waiting.update(offsets)  # the running commit sends these when it is done
            return
        waiting = self._waiting[group] = dict(offsets)
        try:
            while waiting:
                taken = dict(waiting)
                waiting.clear()
                await admin.alter_consumer_group_offsets(group, taken)
        except KafkaError as error:
            failed(str(error))
        finally:
            del self._waiting[group]

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            thread, admin = opened
            try:
                thread.run(admin.close(), timeout=5.0)
            finally:
                thread.close()

    def _opened(self) -> tuple[LoopThread, OffsetAdmin]:
        with self._opening:
            if self._open is None:
                self._open = (LoopThread("tidelog-spark-offsets"), OffsetAdmin(self._settings))
            return self._open


class Cluster:
    """`partitions()` and `offsets()` of the chosen topics. Both block; the first call connects."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.link = AdminLink(options.client)
        self._cached: tuple[float, set[PartitionKey]] | None = None

    def close(self) -> None:
        self._cached = None
        self.link.close()

    def partitions(self, *, known: Set[PartitionKey] | None = None) -> set[PartitionKey]:
        """The chosen partitions that exist. A running query passes the partitions `known` so far.

        A missing topic raises, unless the query runs and failOnDataLoss is false. Then a known topic counts
        as missing only after every retry: a broker that has just started may know no topics for a moment, and
        the query would drop the position and read the topic again.
        """
        cached = self._cached
        if cached is not None and time.monotonic() - cached[0] < self._options.metadata_cache_ms / 1000:
            return cached[1]
        found = self._found(known)
        if self._options.metadata_cache_ms > 0:
            self._cached = (time.monotonic(), found)
        return found

    def offsets(self, wanted: Mapping[PartitionKey, int]) -> Offsets:
        """The offset of LATEST, EARLIEST or a timestamp in each partition; -1 if no record is that late."""
        if not wanted:
            return {}

        def ask() -> Offsets:
            level = self._options.isolation_level
            infos = self.link.run(lambda admin: admin.list_offsets(wanted, isolation_level=level))
            return {partition: info.offset for partition, info in infos.items()}

        return self._retrying(ask)

    def offsets_of_existing(self, wanted: Mapping[PartitionKey, int]) -> Offsets:
        """The same, without the partitions that do not exist any more."""
        there = self.partitions(known=wanted.keys())
        return self.offsets({key: spec for key, spec in wanted.items() if key in there})

    def _found(self, known: Set[PartitionKey] | None) -> set[PartitionKey]:
        if known is None or self._options.fail_on_data_loss:
            return self._retrying(lambda: self._chosen(None))
        topics = {topic for topic, _ in known}
        try:
            return self._retrying(lambda: self._chosen(topics))
        except UnknownTopicOrPartition as error:
            log.warning("%s. The query continues without it, as failOnDataLoss is false", error)
        return self._retrying(lambda: self._chosen(frozenset()))

    def _chosen(self, needed: Set[str] | None) -> set[PartitionKey]:
        """The chosen partitions that exist. The topics in `needed` have to exist; None stands for all."""
        selection = self._options.selection
        found, missing = self.link.run(lambda admin: admin.partitions(_names(selection)))
        if needed is not None:
            missing &= needed
        if missing:
            raise UnknownTopicOrPartition(
                f"the topic {', '.join(sorted(missing))} does not exist on {self._options.bootstrap_servers}:"
                " create it, or correct subscribe or assign (subscribePattern waits for topics that are"
                " not there yet)"
            )
        if isinstance(selection, SubscribePattern):
            pattern = re.compile(selection.pattern)
            return {(topic, index) for topic, index in found if pattern.search(topic)}
        if isinstance(selection, Assign):
            return found & selection.partitions
        return found

    def _retrying(self, ask: Callable[[], T]) -> T:
        first_contact(self._options.client, self._options.bootstrap_timeout_ms)
        attempt = 1
        while True:
            try:
                return ask()
            except OptionError:
                raise
            except (KafkaError, OSError) as error:
                if attempt >= self._options.fetch_offset_retries:
                    raise
                log.warning("attempt %d to get offsets failed: %s", attempt, error)
            attempt += 1
            time.sleep(self._options.fetch_offset_retry_interval_ms / 1000)
            self.close()


def _names(selection: Selection) -> Set[str] | None:
    if isinstance(selection, Subscribe):
        return set(selection.topics)
    if isinstance(selection, Assign):
        return {topic for topic, _ in selection.partitions}
    return None
