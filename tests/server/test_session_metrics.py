"""The ZooKeeper session of a broker in numbers."""

from __future__ import annotations

from typing import cast

from tidelog.metadata.async_tree import AsyncTree, SessionEvent, SessionListener
from tidelog.metadata.zookeeper.connection import Request, Settleable
from tidelog.metrics.prometheus import render
from tidelog.metrics.registry import Registry
from tidelog.server.session_metrics import register_session_metrics


class Tree:
    def __init__(self) -> None:
        self.listeners: list[SessionListener] = []

    def listen(self, listener: SessionListener) -> None:
        self.listeners.append(listener)


def test_events_of_the_session_are_counted_and_the_first_connection_too() -> None:
    registry, tree = Registry(), Tree()
    register_session_metrics(registry, cast("AsyncTree", tree))
    for event in (SessionEvent.DISCONNECTED, SessionEvent.CONNECTED, SessionEvent.EXPIRED):
        for listener in tree.listeners:
            listener(event)
    text = render(registry)
    for name, count in (("syncconnects", 2), ("disconnects", 1), ("expires", 1), ("authfailures", 0)):
        assert f"\nkafka_server_sessionexpirelistener_zookeeper{name}_total {count}\n" in text


def test_a_request_is_measured_to_its_answer() -> None:
    answers: list[tuple[int, bytes]] = []
    taken: list[float] = []
    times = iter([10.0, 10.25])
    request = Request("/a", b"", True, cast("Settleable", None), lambda *answer: answers.append(answer))
    request.measure(lambda: next(times), taken.append)
    request.answer(0, b"data")
    assert answers == [(0, b"data")]
    assert taken == [0.25]
