"""The protocol of the exactly-once sink, step by step: who may write, decide, finish and abort what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.decided import Driver, problems, settled, transactions, values
from tests.spark.hands import Hands
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.spark import ledger as protocol
from tidelog.spark.decisions import Decision
from tidelog.spark.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter, ledger_of
from tidelog.spark.ledger import NameTaken, PreparedRowsGone, Superseded
from tidelog.spark.options import OptionError, sink_options
from tidelog.spark.sending import Target
from tidelog.spark.transactions import TaskIds
from tidelog.testing import Broker


@pytest.fixture(scope="module", params=["two phases", "with a time-out"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    two_phase = request.param == "two phases"
    with Broker({"transaction.two.phase.commit.enable": "true" if two_phase else "false"}) as broker:
        yield broker


@pytest.fixture
def topic(hands: Hands) -> str:
    return hands.topic(partitions=3)


def test_rows_are_read_after_the_commit_and_not_before(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as driver:
        for batch in range(3):
            job = driver.job(batch)
            messages = driver.write_all(job, [f"{batch}a", f"{batch}b"], [f"{batch}c"])
            assert len(values(hands, topic)) == 3 * batch
            driver.commit(job, messages)
            settled(hands, topic)
            assert len(values(hands, topic)) == 3 * (batch + 1)
        known = driver.ledger.decisions.read()
        assert {name: decision.batch for name, decision in known.items()} == {"query-q": 2}


def test_a_task_without_rows_opens_no_transaction(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as driver:
        job = driver.job(0)
        messages = driver.write_all(job, [], ["a"])
        assert [message.transaction is None for message in messages] == [True, False]
        driver.commit(job, messages)
        driver.commit(driver.job(1), [driver.write(driver.job(1), 0, [])])
        settled(hands, topic)
        assert not problems(hands, topic, ["a"])


def test_what_was_decided_is_finished_by_the_next_run_and_not_written_again(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as first:
        job = first.job(0)
        messages = first.write_all(job, ["a"], ["b"])
        with first.ledger.decisions.take(job.name, first.ledger.ids(job).decision) as holder:
            holder.write(holder.known.decided(0, tuple(transactions(messages))))
    with Driver(hands, topic, "run-2") as second:
        job = second.job(0)
        again = second.write_all(job, ["a", "b"])
        assert [message.transaction for message in again] == [None]
        settled(hands, topic)
        assert not problems(hands, topic, ["a", "b"])
        second.commit(job, again)
        second.commit(second.job(1), second.write_all(second.job(1), ["c"]))
        settled(hands, topic)
    assert not problems(hands, topic, ["a", "b", "c"])


def test_what_was_not_decided_is_aborted_by_the_next_run_however_it_is_split(
    hands: Hands, topic: str
) -> None:
    with Driver(hands, topic, "run-1") as first:
        first.write_all(first.job(0), ["a"], ["b"], ["c"])
        with Driver(hands, topic, "run-2") as second:
            second.commit(second.job(0), second.write_all(second.job(0), ["a", "b", "c"]))
            settled(hands, topic)
    assert not problems(hands, topic, ["a", "b", "c"])


def test_a_driver_that_was_left_behind_commits_nothing(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as first, Driver(hands, topic, "run-2") as second:
        first.commit(first.job(0), first.write_all(first.job(0), ["a"]))
        late = first.write_all(first.job(1), ["b", "c"])
        prepared = second.write_all(second.job(1), ["b"], ["c"])
        with pytest.raises(Superseded):
            first.commit(first.job(1), late)
        first.abort(first.job(1), late)
        second.commit(second.job(1), prepared)
        settled(hands, topic)
        with pytest.raises(Superseded, match="followed by run run-2"):
            Driver(hands, topic, "run-1").write(first.job(2), 0, ["d"])
    assert not problems(hands, topic, ["a", "b", "c"])


def test_an_old_task_cannot_write_into_the_new_run(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as first, Driver(hands, topic, "run-2") as second:
        first.write(first.job(0), 0, ["a"])
        prepared = second.write_all(second.job(0), ["a"])
        first.write(first.job(0), 0, ["a"])  # it had joined before, and goes on
        second.commit(second.job(0), prepared)
        settled(hands, topic)
    assert not problems(hands, topic, ["a"])


def test_abort_after_a_commit_that_failed_does_not_undo_what_was_decided(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as driver:
        job = driver.job(0)
        messages = driver.write_all(job, ["a"], ["b"])

        class Broken(RuntimeError): ...

        def fails(*_: object, **__: object) -> None:
            raise Broken

        driver.ledger._finish = fails  # type: ignore[method-assign]
        with pytest.raises(Broken):
            driver.commit(job, messages)
        del driver.ledger._finish
        driver.abort(job, messages)
        assert values(hands, topic) == []
    with Driver(hands, topic, "run-2") as second:
        second.commit(second.job(0), second.write_all(second.job(0), ["a", "b"]))
        settled(hands, topic)
    assert not problems(hands, topic, ["a", "b"])


def test_abort_drops_what_was_written(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as driver:
        messages = driver.write_all(driver.job(0), ["a"], ["b"])
        driver.write(driver.job(0), 2, ["c"])  # its message never came
        driver.abort(driver.job(0), messages)
        settled(hands, topic)
    assert not problems(hands, topic, [])


def test_other_attempts_of_a_task_are_aborted_at_the_commit(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as driver:
        job = driver.job(0)
        driver.write(job, 0, ["a"], attempt="0.0")
        won = driver.write(job, 0, ["a"], attempt="1.1")
        driver.commit(job, [won])
        settled(hands, topic)
    assert not problems(hands, topic, ["a"])


def test_a_transaction_that_is_gone_before_the_decision_fails_the_batch_as_a_whole(
    hands: Hands, topic: str
) -> None:
    with Driver(hands, topic, "run-1") as driver:
        job = driver.job(0)
        messages = driver.write_all(job, ["a"], ["b"])
        hands.admin.fence_producers([transactions(messages)[1].transactional_id])
        with pytest.raises(PreparedRowsGone, match="1 of 2 transactions of query-q, batch 0"):
            driver.commit(job, messages)
        driver.abort(job, messages)
        settled(hands, topic)
        assert not problems(hands, topic, [])


def test_a_named_batch_is_written_once(hands: Hands, topic: str) -> None:
    for run, batch, row in (("one", 0, "a"), ("two", 0, "a"), ("three", 1, "b")):
        with Driver(hands, topic, run) as driver:
            job = driver.job(batch, in_steps=True, name="name-orders")
            driver.commit(job, driver.write_all(job, [row]))
            settled(hands, topic)
            assert driver.ledger.decisions.read()["name-orders"].transactions == ()
    assert not problems(hands, topic, ["a", "b"])


def test_a_query_with_a_new_checkpoint_does_not_pass_over_its_rows_as_written(
    hands: Hands, topic: str
) -> None:
    """It counts its batches from 0 again; the query that has the name goes on."""
    with Driver(hands, topic, "run-1") as old, Driver(hands, topic, "run-2") as new:
        for batch in range(2):
            job = old.job(batch, in_steps=True, name="name-orders", query="first")
            old.commit(job, old.write_all(job, [f"{batch}"]))
        job = new.job(0, in_steps=True, name="name-orders", query="second")
        with pytest.raises(NameTaken, match="exactlyOnceName=orders was used up to batch 1 by query first"):
            new.write(job, 0, ["x"])
        new.abort(job, [])
        job = old.job(2, in_steps=True, name="name-orders", query="first")
        old.commit(job, old.write_all(job, ["2"]))
        job = new.job(3, in_steps=True, name="name-orders", query="second")
        new.commit(job, new.write_all(job, ["3"]))
        settled(hands, topic)
    assert not problems(hands, topic, ["0", "1", "2", "3"])


def test_the_next_batch_of_a_name_finishes_one_whose_error_was_passed_over(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run") as driver:
        job = driver.job(0, in_steps=True, name="name-orders")
        messages = driver.write_all(job, ["a"])
        with driver.ledger.decisions.take(job.name, driver.ledger.ids(job).decision) as holder:
            holder.write(holder.known.decided(0, tuple(transactions(messages))))
        job = driver.job(1, in_steps=True, name="name-orders")
        driver.commit(job, driver.write_all(job, ["b"]))
        settled(hands, topic)
    assert not problems(hands, topic, ["a", "b"])


def test_a_write_without_a_name_leaves_nothing_to_remember(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "x") as driver:
        job = driver.job(0, in_steps=True, name="write-x")
        driver.commit(job, driver.write_all(job, ["a"], ["b"]))
        settled(hands, topic)
        assert driver.ledger.decisions.read() == {}
    assert not problems(hands, topic, ["a", "b"])


def test_a_write_without_a_name_that_died_after_its_decision_is_finished_by_any_other(
    hands: Hands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(hands, topic, "x") as dead:
        job = dead.job(0, in_steps=True, name="write-x")
        messages = dead.write_all(job, ["a"], ["b"])
        with dead.ledger.decisions.take(job.name, dead.ledger.ids(job).decision) as holder:
            holder.write(holder.known.decided(0, tuple(transactions(messages))))
    with Driver(hands, topic, "run") as other:
        other.commit(other.job(0), other.write_all(other.job(0), ["c"]))
        settled(hands, topic)
        assert sorted(other.ledger.decisions.read()) == ["query-q", "write-x"], "its driver may live"
    assert not problems(hands, topic, ["a", "b", "c"])
    monkeypatch.setattr(protocol, "LEFT_BEHIND_SECONDS", 0.0)
    with Driver(hands, topic, "later") as later:
        later.commit(later.job(1), later.write_all(later.job(1), ["d"]))
        settled(hands, topic)
        assert list(later.ledger.decisions.read()) == ["query-q"]
    assert not problems(hands, topic, ["a", "b", "c", "d"])


def test_the_topic_of_decisions_has_to_be_compacted(hands: Hands, topic: str) -> None:
    other = hands.topic(configs={"cleanup.policy": "delete"})
    wrong = pytest.raises(OptionError, match=r"cleanup\.policy=delete")
    with Driver(hands, topic, "run", decisionTopic=other) as driver, wrong:
        driver.write(driver.job(0), 0, ["a"])


def test_a_broker_that_has_not_heard_of_the_topic_of_decisions_is_asked_again(
    hands: Hands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = hands.topic(configs={"cleanup.policy": "delete"})
    wrong = pytest.raises(OptionError, match=r"cleanup\.policy=delete")
    with Driver(hands, topic, "run", decisionTopic=other) as driver, wrong:
        decisions = driver.ledger.decisions
        known, answers = decisions._settings, iter([None])
        monkeypatch.setattr(decisions, "_settings", lambda: next(answers, known()))
        driver.write(driver.job(0), 0, ["a"])


def test_decisions_survive_being_written_down() -> None:
    decision = Decision("query-q", 3, "run-3", ("run-2",), 7, (PreparedTxnState("id", 1000, 4),))
    ((key, value),) = decision.records()
    assert key == b"query-q"
    assert Decision.from_records("query-q", {key: value}) == decision
    with pytest.raises(OptionError, match="version 9"):
        Decision.from_records("query-q", {key: value.replace(b'"version":1', b'"version":9')})


def test_the_ids_of_a_name_are_not_taken_for_those_of_another() -> None:
    ids = TaskIds("tidelog-spark", "name-a")
    assert ids.generation(ids.of_task(4, 0, "0.2")) == 4
    assert ids.generation(ids.decision) is None
    assert ids.generation(TaskIds("tidelog-spark", "name-a-b").of_task(4, 0, "0.2")) is None
    assert ids.generation(TaskIds("tidelog-spark", ids.of_task(1, 0, "0.0")).of_task(4, 0, "0.2")) is None


def test_the_batches_of_a_name_share_a_ledger_in_a_worker() -> None:
    """A worker that lives for thousands of batches must not keep the connections of each."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "exactlyOnce": "true", "exactlyOnceName": "a"}
    first, second = (ledger_of(sink_options({**given, "exactlyOnceBatch": str(batch)})) for batch in (1, 2))
    other = ledger_of(sink_options({**given, "exactlyOnceName": "b", "exactlyOnceBatch": "1"}))
    assert first is second
    assert other is not first


def test_a_worker_that_writes_under_many_names_keeps_few_ledgers() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "exactlyOnce": "true", "exactlyOnceBatch": "1"}
    names = [sink_options({**given, "exactlyOnceName": f"day-{day}"}) for day in range(40)]
    used_all_along = ledger_of(names[0])
    ledgers = []
    for name in names[1:]:
        ledgers.append(ledger_of(name))
        assert ledger_of(names[0]) is used_all_along
    assert not used_all_along.transactions.thread.closed
    assert sum(not ledger.transactions.thread.closed for ledger in ledgers) < 16


def test_two_phases_are_left_to_the_sink(hands: Hands, topic: str) -> None:
    """They may be asked for where the broker, or the write, has none, and may be declined."""
    for row, wanted in (("a", "true"), ("b", "false")):
        options = {"kafka.transaction.two.phase.commit.enable": wanted}
        with Driver(hands, topic, row, **options) as driver:
            job = driver.job(0, in_steps=True, name=f"write-{row}")
            driver.commit(job, driver.write_all(job, [row]))
            settled(hands, topic)
    assert not problems(hands, topic, ["a", "b"])


def test_a_time_out_that_the_broker_does_not_allow_says_what_it_allows(hands: Hands, topic: str) -> None:
    wrong = pytest.raises(
        OptionError, match=r"timeout\.ms=100000000: .* transaction\.max\.timeout\.ms, .* 900000"
    )
    with Driver(hands, topic, "x", **{"kafka.transaction.timeout.ms": "100000000"}) as driver, wrong:
        driver.write(driver.job(0), 0, ["a"])


def test_options_that_do_not_go_together_are_refused() -> None:
    target = Target("t", has_key=False, has_partition=False, has_headers=False)
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "exactlyOnce": "true", "exactlyOnceName": "a"}
    with pytest.raises(OptionError, match="go together"):
        ExactlyOnceBatchWriter(sink_options(given), target)
    with pytest.raises(OptionError, match="the checkpoint identifies a stream"):
        ExactlyOnceStreamWriter(sink_options(given), target)


def test_many_rows_go_through(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as driver:
        job = driver.job(0)
        rows = [f"{number:06}" for number in range(20_000)]
        driver.commit(job, [driver.write(job, 0, rows)])
        settled(hands, topic)
    assert not problems(hands, topic, rows)
