"""The checkers of the cluster find what they should: made-up logs, metadata and watches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.chaos.controllers import check_controllers
from tests.chaos.faulty_cluster import EXPLAINED
from tests.chaos.views import View
from tests.chaos.watch_probes import missing_data_watches
from tests.chaos.writer import NewEpochs, check_writes
from tests.faults.client import surprises
from tests.support.run_queue import RunQueue, within_own_time
from tests.support.wait import eventually


def elected(broker: int, epoch: int) -> str:
    return f'ts=1 level=info part=controller msg="broker {broker} is the controller with epoch {epoch}"\n'


def changed(broker: int, epoch: int) -> str:
    return (
        f'ts=1 level=info part=state.change msg="partition t-0: x to y" controller={broker} epoch={epoch}\n'
    )


def test_controllers_one_after_the_other_are_right() -> None:
    logs = {
        1: [elected(1, 1) + changed(1, 1), elected(1, 3) + changed(1, 3)],
        2: [elected(2, 2) + changed(2, 2)],
    }
    assert check_controllers(logs, 3) == []


def test_two_controllers_in_one_epoch_are_found() -> None:
    logs = {1: [elected(1, 1) + changed(1, 1)], 2: [elected(2, 1) + changed(2, 1)]}
    assert check_controllers(logs, 1) == [
        "brokers [1, 2] are controllers in epoch 1",
        "epoch 1 has 2 elections",
    ]


def test_a_state_change_of_a_broker_that_was_not_elected_is_found() -> None:
    logs = {1: [elected(1, 1)], 2: [changed(2, 1)]}
    assert check_controllers(logs, 1) == ["brokers [1, 2] are controllers in epoch 1"]


def test_a_state_change_after_the_next_election_of_the_same_broker_is_found() -> None:
    logs = {1: [elected(1, 1) + elected(1, 2) + changed(1, 1)]}
    assert check_controllers(logs, 2) == ["broker 1 acts in epoch 1 after epoch 2"]


def test_an_epoch_that_the_tree_has_not_is_found() -> None:
    assert check_controllers({1: [elected(1, 4)]}, 3) == ["epoch 4 is in a log, and the tree has 3"]


def test_a_lost_watch_is_found() -> None:
    complete = {
        1: {"/controller", "/brokers/ids/1", "/brokers/ids/2", "/brokers/topics/t"},
        2: {"/controller"},
    }
    assert missing_data_watches(complete, 1, ["t"], [1, 2]) == {}
    assert missing_data_watches({**complete, 2: set()}, 1, ["t"], [1, 2]) == {2: ["/controller"]}
    assert missing_data_watches(complete, 2, ["t"], [1, 2]) == {
        2: ["/brokers/ids/1", "/brokers/ids/2", "/brokers/topics/t"]
    }


def test_metadata_with_an_old_leader_epoch_differs() -> None:
    new, old = (View(1, frozenset({1, 2}), frozenset({("t", 0, 1, epoch)})) for epoch in (3, 2))
    assert new != old


def test_a_lost_and_a_repeated_record_are_found() -> None:
    assert check_writes({("t", 0): ["a", "b"]}, {("t", 0): ["a", "b", "unsure"]}) == []
    assert check_writes({("t", 0): ["a", "b"]}, {("t", 0): ["a"]}) == ["t-0: b was acknowledged and is lost"]
    assert check_writes({("t", 0): ["a"]}, {("t", 0): ["a", "a"]}) == ["t-0: a is there 2 times"]
    assert check_writes({("t", 0): ["a", "b"]}, {("t", 0): ["b", "a"]}) == ["t-0: a comes after b"]
    anew = {("t", 0): Counter("a")}
    assert check_writes({("t", 0): ["a"]}, {("t", 0): ["a", "a"]}, anew) == []
    assert check_writes({}, {("t", 0): ["a", "b", "a", "b"]}, anew) == ["t-0: b is there 2 times"]
    assert check_writes({}, {("t", 0): ["a", "a", "a"]}, anew) == ["t-0: a is there 3 times"]
    assert check_writes({}, {("t", 1): ["a", "a"]}, anew) == ["t-1: a is there 2 times"]


def test_the_records_that_librdkafka_numbers_anew_are_read_from_its_log() -> None:
    epochs = NewEpochs()
    logger = epochs.logger()
    for text in (
        "NEWPID [p] [thrd:b/2]: t [3] changed PID{Invalid} -> PID{Id:3,Epoch:0} with base MsgId 1",
        "NEWPID [p] [thrd:b/2]: t [3] will not change PID{Id:3,Epoch:0} -> PID{Id:3,Epoch:1} yet",
        "NEWPID [p] [thrd:b/2]: t [3] changed PID{Id:3,Epoch:0} -> PID{Id:3,Epoch:1} with base MsgId 144",
    ):
        logger.debug(text)
    assert epochs.numbered == [(("t", 3), 144)]


def test_an_unexpected_error_in_a_log_is_found() -> None:
    expected = 'level=error part=state.change msg="partitions cannot move to x: no replica may lead: t-0"'
    failure = 'level=error part=controller msg="the controller\'s event BrokerChange failed"'
    assert surprises(f"{expected}\n{failure}\n", EXPLAINED) == [failure]


def test_an_error_of_the_program_about_replicas_is_found() -> None:
    expected = (
        'level=error msg="partitions cannot move to OnlinePartition: none of the replicas [1] is online: t-0"'
    )
    failure = (
        'level=error msg="t-0 cannot be as the controller wants it: broker 2 is none of the replicas [1]"'
    )
    assert surprises(f"{expected}\n{failure}\n", EXPLAINED) == [failure]


def test_time_in_the_run_queue_is_counted() -> None:
    """Two processes that never rest share a core: each waits for the other."""
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        queue = RunQueue([process.pid for process in busy])
        eventually(lambda: queue.seconds() > 0.1, "the processes wait for each other", 60)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_what_does_not_happen_in_its_own_time_fails() -> None:
    asked: list[int] = []

    def third_time() -> bool:
        asked.append(1)
        return len(asked) == 3

    assert within_own_time(third_time, "the third time", 60.0, [], 0.001) < 60.0
    with pytest.raises(AssertionError, match=r"never: not within 0\.05 s"):
        within_own_time(lambda: False, "never", 0.05, [], 0.001)
