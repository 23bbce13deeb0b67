"""The states of a broker's life, in Kafka's numbers and in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.metrics.prometheus import render
from tidelog.network.loop import BrokerLoop
from tidelog.server.broker import Broker, BrokerState
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.run import StartFailed

STARTING, RUNNING = BrokerState.STARTING, BrokerState.RUNNING_AS_BROKER
RECOVERING = BrokerState.RECOVERING_FROM_UNCLEAN_SHUTDOWN
STOPPING, SHUTTING_DOWN = BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.BROKER_SHUTTING_DOWN
NOT_RUNNING = BrokerState.NOT_RUNNING


class Recorded(Broker):
    """Keeps the states it went through."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "state":
            self.__dict__.setdefault("states", []).append(value)
        super().__setattr__(name, value)

    @property
    def seen(self) -> list[BrokerState]:
        states: list[BrokerState] = self.__dict__["states"]
        return states


def shown(broker: Broker) -> int:
    """The state as the metrics tell it."""
    (line,) = [
        line
        for line in render(broker.registry).splitlines()
        if line.startswith("kafka_server_kafkaserver_brokerstate ")
    ]
    return int(line.split()[1])


def live(folder: Path, during: Callable[[Recorded], None] | None = None, **settings: str) -> Recorded:
    """One life of a broker, from its start to its end."""
    loop = BrokerLoop(1)
    asyncio.set_event_loop(loop)
    overrides = {
        "log.dirs": str(folder / "data"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    broker = Recorded(BrokerConfig.load(None, overrides), loop)

    async def life() -> None:
        try:
            await broker.start()
            assert shown(broker) == RUNNING
            if during is not None:
                during(broker)
        finally:
            await broker.stop()

    try:
        loop.run_until_complete(life())
    finally:
        loop.close()
        asyncio.set_event_loop(None)
    return broker


def test_a_first_life(tmp_path: Path) -> None:
    broker = live(tmp_path)
    assert broker.seen == [NOT_RUNNING, STARTING, RUNNING, STOPPING, SHUTTING_DOWN, NOT_RUNNING]
    assert shown(broker) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_the_marker_of_a_clean_stop_is_gone_while_running(tmp_path: Path) -> None:
    live(tmp_path)
    marker = tmp_path / "data" / ".kafka_cleanshutdown"

    def gone(_: Recorded) -> None:
        assert not marker.exists()

    assert marker.exists()
    live(tmp_path, gone)
    assert marker.exists()


def test_a_life_after_an_unclean_stop_recovers_first(tmp_path: Path) -> None:
    def make_topic(broker: Recorded) -> None:
        assert broker._topic_creation is not None
        broker._topic_creation.create("t")

    live(tmp_path, make_topic)
    assert (tmp_path / "data" / "t-0").is_dir()
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    assert live(tmp_path).seen[1:4] == [STARTING, RECOVERING, RUNNING]
    assert live(tmp_path).seen[1:3] == [STARTING, RUNNING]


def test_a_start_that_fails_never_runs_and_leaves_the_folder_to_others(tmp_path: Path) -> None:
    live(tmp_path, broker_id="1")
    with pytest.raises(StartFailed):
        live(tmp_path, broker_id="2")
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists(), "it was not there to be taken"
    assert live(tmp_path, broker_id="1").seen[1:3] == [STARTING, RUNNING]
