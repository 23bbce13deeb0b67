"""Transactions of the producer: seen whole or not at all, by whichever version of the protocol."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.clients.reading import batches, values
from tests.support.own_broker import OwnBrokers, kafka_kind
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.clients.connection import Connection, split_address
from tidelog.clients.errors import (
    ClientClosedException,
    ConfigError,
    IllegalStateException,
    RecordTooLargeException,
    TimeoutException,
    TransactionAbortedException,
)
from tidelog.clients.offsets import ConsumerGroupMetadata, OffsetAndMetadata
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.producer import AsyncProducer
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.clients.producer.transactions import TransactionManager
from tidelog.errors import InvalidProducerEpoch, InvalidTopic, ProducerFenced
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

NewName = Callable[[str], str]
pytestmark = pytest.mark.needs("EndTxn")


@pytest.fixture
def topic(bootstrap: str, new_name: NewName) -> str:
    name = new_name("transactional")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, num_partitions=2)])
    return name


def sees(bootstrap: str, topic: str, expected: list[bytes]) -> None:
    """A commit is answered when it is certain; that readers see it follows a moment later."""
    eventually(lambda: values(bootstrap, topic, committed=True) == expected, f"readers see {expected}")


def producer(bootstrap: str, transactional_id: str, **settings: object) -> Producer:
    return Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id, **settings)


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(
    bootstrap: str, topic: str, new_name: NewName
) -> None:
    with producer(bootstrap, new_name("id")) as sender:
        sender.init_transactions()
        for number in range(6):
            sender.begin_transaction()
            for partition in range(2):
                sender.send(topic, b"%d" % number, partition=partition)
            if number % 2:
                sender.abort_transaction()
            else:
                sender.commit_transaction()
    sees(bootstrap, topic, [b"0", b"2", b"4"] * 2)
    assert set(values(bootstrap, topic)) >= {b"0", b"2", b"4"}


def test_a_with_block_commits_or_aborts(bootstrap: str, topic: str, new_name: NewName) -> None:
    with producer(bootstrap, new_name("id")) as sender:
        with sender.transaction():
            sender.send(topic, b"kept", partition=0)
        with pytest.raises(RuntimeError, match="of the program"), sender.transaction():
            sender.send(topic, b"dropped", partition=0).result(10)
            raise RuntimeError("of the program")
        with sender.transaction():
            sender.send(topic, b"kept too", partition=0)
    sees(bootstrap, topic, [b"kept", b"kept too"])


def test_an_empty_transaction_is_nothing_to_the_broker(bootstrap: str, topic: str, new_name: NewName) -> None:
    with producer(bootstrap, new_name("id")) as sender:
        with sender.transaction():
            pass
        with sender.transaction():
            sender.send(topic, b"v", partition=0)
    sees(bootstrap, topic, [b"v"])


def test_many_transactions_under_load(bootstrap: str, topic: str, new_name: NewName) -> None:
    with producer(bootstrap, new_name("id"), batch_size=500) as sender:
        for number in range(20):
            with sender.transaction():
                for _ in range(100):
                    sender.send(topic, b"%d" % number)
    eventually(lambda: len(values(bootstrap, topic, committed=True)) == 2000, "everything is there")
    found = Counter(values(bootstrap, topic, committed=True))
    assert found == {b"%d" % number: 100 for number in range(20)}


def test_records_dropped_by_an_abort_say_so(bootstrap: str, topic: str, new_name: NewName) -> None:
    settings = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}
    with producer(bootstrap, new_name("id"), **settings) as sender:
        sender.init_transactions()
        sender.begin_transaction()
        future = sender.send(topic, b"v", partition=0)
        sender.abort_transaction()
        assert isinstance(future.exception(5), TransactionAbortedException)


def test_a_newer_producer_of_the_same_id_fences_the_older(
    bootstrap: str, topic: str, new_name: NewName
) -> None:
    name = new_name("id")
    old, new = producer(bootstrap, name), producer(bootstrap, name)
    try:
        old.init_transactions()
        old.begin_transaction()
        old.send(topic, b"of the old", partition=0).result(10)
        new.init_transactions()
        with pytest.raises(ProducerFenced):
            old.commit_transaction()
        with pytest.raises(ProducerFenced):
            old.begin_transaction()
        with pytest.raises(ProducerFenced):
            old.send(topic, b"v")
        with new.transaction():
            new.send(topic, b"of the new", partition=0)
    finally:
        old.close()
        new.close()
    sees(bootstrap, topic, [b"of the new"])


def test_only_the_coordinator_says_who_is_fenced(bootstrap: str, topic: str, new_name: NewName) -> None:
    name = new_name("id")
    with producer(bootstrap, name) as old, producer(bootstrap, name) as new:
        old.init_transactions()
        old.begin_transaction()
        old.send(topic, b"of the old", partition=0).result(10)
        new.init_transactions()
        assert isinstance(old.send(topic, b"late", partition=0).exception(10), InvalidProducerEpoch)
        with pytest.raises(InvalidProducerEpoch, match="or another producer took over"):
            old.commit_transaction()
        with pytest.raises(ProducerFenced):
            old.abort_transaction()
        with pytest.raises(ProducerFenced):
            old.begin_transaction()


@pytest.mark.skipif(kafka_kind() == "kafka3", reason="its coordinator fences the producer as well")
def test_after_a_transaction_that_took_too_long_the_producer_goes_on(
    own_broker: OwnBrokers, new_name: NewName
) -> None:
    topic = new_name("late")
    with own_broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}) as broker:
        with producer(broker.bootstrap, new_name("id"), transaction_timeout_ms=1500) as sender:
            sender.init_transactions()
            sender.begin_transaction()
            eventually(
                lambda: isinstance(
                    sender.send(topic, b"dropped", partition=0).exception(10), InvalidProducerEpoch
                ),
                "the transaction takes too long",
            )
            with pytest.raises(InvalidProducerEpoch, match=r"longer than transaction\.timeout\.ms=1500"):
                sender.commit_transaction()
            sender.abort_transaction()
            with sender.transaction():
                sender.send(topic, b"kept", partition=0)
        sees(broker.bootstrap, topic, [b"kept"])


def test_a_record_that_fails_leaves_the_transaction_to_be_aborted(
    bootstrap: str, topic: str, new_name: NewName
) -> None:
    with producer(bootstrap, new_name("id"), max_block_ms=10_000) as sender:
        sender.init_transactions()
        sender.begin_transaction()
        sender.send(topic, b"dropped", partition=0).result(10)
        assert isinstance(sender.send("no/such topic", b"v").exception(10), InvalidTopic)
        with pytest.raises(InvalidTopic):
            sender.commit_transaction()
        with pytest.raises(InvalidTopic):
            sender.send(topic, b"v")
        sender.abort_transaction()
        with sender.transaction():
            sender.send(topic, b"kept", partition=0)
    sees(bootstrap, topic, [b"kept"])


def test_calls_out_of_turn_are_refused(bootstrap: str, topic: str, new_name: NewName) -> None:
    with producer(bootstrap, new_name("id")) as sender:
        for call in (
            sender.begin_transaction,
            sender.commit_transaction,
            sender.abort_transaction,
            sender.prepare_transaction,
            lambda: sender.send(topic, b"v"),
        ):
            with pytest.raises(IllegalStateException, match="init_transactions gets one"):
                call()
        sender.init_transactions()
        with pytest.raises(IllegalStateException, match="does not fit: no transaction is open"):
            sender.init_transactions()
        with pytest.raises(
            IllegalStateException, match="send does not fit: no transaction is open, begin_transaction"
        ):
            sender.send(topic, b"v")
        sender.begin_transaction()
        with pytest.raises(
            IllegalStateException, match="begin_transaction does not fit: a transaction is open"
        ):
            sender.begin_transaction()
        sender.abort_transaction()
    with pytest.raises(ClientClosedException):
        sender.begin_transaction()
    with (
        Producer(bootstrap_servers=bootstrap) as plain,
        pytest.raises(IllegalStateException, match=r"transactional\.id"),
    ):
        plain.begin_transaction()


def test_closing_aborts_an_open_transaction(bootstrap: str, topic: str, new_name: NewName) -> None:
    name = new_name("id")
    with producer(bootstrap, name) as sender:
        sender.init_transactions()
        sender.begin_transaction()
        sender.send(topic, b"open", partition=0).result(10)
    kinds = [header.is_control for header, _ in batches(bootstrap, topic, 0)]
    eventually(
        lambda: [h.is_control for h, _ in batches(bootstrap, topic, 0)] == [False, True], f"abort: {kinds}"
    )
    sees(bootstrap, topic, [])


def committed_offset(bootstrap: str, group: str, topic: str) -> tuple[int, str | None]:
    with Connection(*split_address(bootstrap)) as broker:
        found = broker.call(
            FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), FindCoordinatorResponse, version=4
        ).coordinators[0]
    if found.error_code:
        return -2, None
    with Connection(found.host, found.port) as broker:
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])],
            require_stable=True,
        )
        answer = broker.call(request, OffsetFetchResponse, version=7)
    if answer.error_code:
        return -2, None
    entry = answer.topics[0].partitions[0]
    return entry.committed_offset, entry.metadata


@pytest.mark.needs("TxnOffsetCommit")
def test_offsets_are_committed_with_the_transaction(bootstrap: str, topic: str, new_name: NewName) -> None:
    group = new_name("group")
    with producer(bootstrap, new_name("id")) as sender:
        with sender.transaction():
            sender.send(topic, b"v", partition=0)
            sender.send_offsets_to_transaction({(topic, 0): 7}, group)
        eventually(lambda: committed_offset(bootstrap, group, topic)[0] == 7, "the offset is there")
        sender.begin_transaction()
        sender.send_offsets_to_transaction(
            {(topic, 0): OffsetAndMetadata(9, "note")}, ConsumerGroupMetadata(group)
        )
        sender.abort_transaction()
        eventually(lambda: committed_offset(bootstrap, group, topic)[0] == 7, "the abort left it alone")
        with sender.transaction():
            sender.send_offsets_to_transaction(
                {(topic, 0): OffsetAndMetadata(11, "note")}, ConsumerGroupMetadata(group)
            )
        eventually(lambda: committed_offset(bootstrap, group, topic) == (11, "note"), "the next one is there")


@pytest.mark.needs("TxnOffsetCommit")
def test_offsets_that_were_not_in_time_keep_the_transaction_from_being_committed(
    own_broker: OwnBrokers, new_name: NewName, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = new_name("late"), new_name("group")
    with own_broker() as broker, producer(broker.bootstrap, new_name("id")) as sender:
        sender.init_transactions()
        sender.begin_transaction()
        sender.send(topic, b"v", partition=0).result(20)
        broker.kill()
        with monkeypatch.context() as impatient:
            impatient.setattr(sender._transactions, "_limit", 0.3)
            with pytest.raises(TimeoutException, match="call it again"):
                sender.send_offsets_to_transaction({(topic, 0): 5}, group)
        broker.restart(kill=True)
        for call in (sender.commit_transaction, sender.prepare_transaction):
            with pytest.raises(
                IllegalStateException, match="send_offsets_to_transaction was not done in time"
            ):
                call()
        sender.send_offsets_to_transaction({(topic, 0): 5}, group)
        sender.commit_transaction()
        sees(broker.bootstrap, topic, [b"v"])
        eventually(
            lambda: committed_offset(broker.bootstrap, group, topic) == (5, ""),
            "the offset is committed as well",
        )


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_is_ended_by_another_process(
    bootstrap: str, topic: str, new_name: NewName, commit: bool
) -> None:
    name = new_name("id")
    first = producer(bootstrap, name)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"prepared", partition=0)
    handle = first.prepare_transaction()
    first.close()
    copy: PreparedTxnState = pickle.loads(pickle.dumps(handle))
    assert copy == handle
    sees(bootstrap, topic, [])
    with producer(bootstrap, name) as second:
        second.complete_transaction(copy, commit=commit)
        expected = [b"prepared"] if commit else []
        sees(bootstrap, topic, expected)
        with second.transaction():
            second.send(topic, b"next", partition=0)
    sees(bootstrap, topic, [*expected, b"next"])


def test_a_prepared_transaction_is_ended_by_its_own_producer(
    bootstrap: str, topic: str, new_name: NewName
) -> None:
    with producer(bootstrap, new_name("id")) as sender:
        sender.init_transactions()
        for commit in (True, False):
            sender.begin_transaction()
            sender.send(topic, b"%d" % commit, partition=0)
            handle = sender.prepare_transaction()
            with pytest.raises(IllegalStateException, match="the transaction is prepared"):
                sender.send(topic, b"late")
            sender.complete_transaction(handle, commit=commit)
        with pytest.raises(IllegalStateException, match="was prepared by 'other'"):
            sender.complete_transaction(PreparedTxnState("other", 1, 1), commit=True)
    sees(bootstrap, topic, [b"1"])


def test_coroutines_have_transactions(bootstrap: str, topic: str, new_name: NewName) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=bootstrap, transactional_id=new_name("id")) as sender:
            async with sender.transaction():
                await sender.send(topic, b"kept", partition=0)
            with pytest.raises(RuntimeError):
                async with sender.transaction():
                    await sender.send(topic, b"dropped", partition=0)
                    raise RuntimeError("of the program")

    asyncio.run(main())
    sees(bootstrap, topic, [b"kept"])


def test_what_takes_too_long_may_be_called_again(new_name: NewName) -> None:
    sender = producer("127.0.0.1:1", new_name("id"), max_block_ms=200)
    begun = time.monotonic()
    for _ in range(2):
        with pytest.raises(TimeoutException, match=r"init_transactions: not done within max\.block\.ms=200"):
            sender.init_transactions()
    assert time.monotonic() - begun < 5
    sender.close(1)


def test_a_transactional_id_needs_idempotence() -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        Producer(bootstrap_servers="127.0.0.1:1", transactional_id="t", acks=1)


def test_two_threads_share_a_transaction(bootstrap: str, topic: str, new_name: NewName) -> None:
    with producer(bootstrap, new_name("id")) as sender:
        with sender.transaction():

            def send(name: int) -> None:
                for number in range(200):
                    sender.send(topic, b"%d-%d" % (name, number), partition=name)

            threads = [threading.Thread(target=send, args=(name,)) for name in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert isinstance(sender.metrics()["record-send-total"], int)
    eventually(lambda: len(values(bootstrap, topic, committed=True)) == 400, "everything is there")


def test_a_record_refused_on_the_senders_thread_fails_the_transaction_on_its_loop(
    bootstrap: str, topic: str, new_name: NewName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")  # loops then refuse what is not meant for other threads
    with producer(bootstrap, new_name("id"), max_request_size=1000) as sender:
        sender.init_transactions()
        sender.begin_transaction()
        error = sender.send(topic, b"x" * 2000).exception(10)
        assert isinstance(error, RecordTooLargeException)
        with pytest.raises(RecordTooLargeException):
            sender.commit_transaction()
        sender.abort_transaction()
        with sender.transaction():
            sender.send(topic, b"next", partition=0)
    sees(bootstrap, topic, [b"next"])


@pytest.mark.parametrize("way", ["calls", "with", "columns"])
def test_the_state_of_a_transaction_changes_on_the_loop_alone(
    bootstrap: str, topic: str, new_name: NewName, way: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    threads: Counter[str] = Counter()

    class Watched(TransactionManager):
        def __setattr__(self, name: str, value: object) -> None:
            threads[threading.current_thread().name] += 1
            super().__setattr__(name, value)

    too_large = b"x" * 2_000_000
    with producer(bootstrap, new_name("id"), client_id="watched") as sender:
        transactions = sender._core.transactions
        assert transactions is not None
        transactions.__class__ = Watched
        sender.init_transactions()
        if way == "with":
            with pytest.raises(RecordTooLargeException), sender.transaction():
                sender.send(topic, too_large)
        else:
            sender.begin_transaction()
            if way == "columns":
                with pytest.raises(RecordTooLargeException):
                    sender.send_arrow(pa.table({"value": [too_large]}), topic)
            else:
                assert isinstance(sender.send(topic, too_large).exception(10), RecordTooLargeException)
            # The next call knows it already.
            with pytest.raises(RecordTooLargeException):
                sender.send(topic, b"small")
            sender.abort_transaction()
        with sender.transaction():
            sender.send(topic, b"after")
    assert set(threads) == {"producer watched"}


def test_a_transaction_can_begin_in_a_callback(bootstrap: str, topic: str, new_name: NewName) -> None:
    with producer(bootstrap, new_name("id")) as sender:
        sender.init_transactions()
        problems: list[BaseException] = []

        def begin(metadata: object, error: BaseException | None) -> None:
            try:
                sender.begin_transaction()
            except BaseException as problem:
                problems.append(problem)

        with sender.transaction():
            sender.send(topic, b"v", callback=begin).result(10)
        assert [type(problem) for problem in problems] == [IllegalStateException]
        assert "a transaction is open" in str(problems[0])
