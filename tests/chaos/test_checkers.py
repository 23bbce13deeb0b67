"""The checkers of the cluster find what they should: made-up logs, metadata and watches."""

from __future__ import annotations

from tests.chaos.controllers import check_controllers
from tests.chaos.faulty_cluster import EXPLAINED
from tests.chaos.views import View
from tests.chaos.watch_probes import missing_data_watches
from tests.chaos.writer import check_writes
from tests.faults.client import surprises


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


def test_an_unexpected_error_in_a_log_is_found() -> None:
    expected = 'level=error part=state.change msg="partitions cannot move to x: no replica may lead: t-0"'
    failure = 'level=error part=controller msg="the controller\'s event BrokerChange failed"'
    assert surprises(f"{expected}\n{failure}\n", EXPLAINED) == [failure]
