"""A stop by signal: what is under way is answered, what was acknowledged is there, the marker is written."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.faults.client import Client, Produced, batch_of, fetch_request, surprises
from tests.server.scrape import scrape
from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed
from tests.support.wait import eventually, patience
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse


class Writer(threading.Thread):
    """Writes batches of one size until the broker is gone; keeps what was acknowledged."""

    def __init__(self, broker: Broker, partition: int, acks: int, size: int) -> None:
        super().__init__(daemon=True)
        self._address = broker.address
        self._partition = partition
        self._acks = acks
        self._size = size
        self.acknowledged: dict[int, bytes] = {}
        self.refused: list[int] = []

    def run(self) -> None:
        try:
            with Client(self._address) as client:
                for at in range(1_000_000):
                    value = b"%d " % at + b"x" * self._size
                    answer: Produced = client.produce("t", self._partition, batch_of(value), self._acks)
                    if answer.error:
                        self.refused.append(answer.error)
                    else:
                        self.acknowledged[answer.offset] = value
        except (ConnectionClosed, OSError):
            pass


@pytest.mark.parametrize("flush", ["9223372036854775807", "1"], ids=["page cache", "flushed"])
def test_everything_acknowledged_before_a_stop_is_there_after_it(tmp_path: Path, flush: str) -> None:
    with Broker(tmp_path) as broker:
        with Client(broker.address) as client:
            client.create_topic("t", 4, {"flush.messages": flush})
        writers = [
            Writer(broker, partition, acks, size)
            for partition, (acks, size) in enumerate([(1, 10), (-1, 10), (1, 200_000), (-1, 200_000)])
        ]
        for writer in writers:
            writer.start()
        eventually(lambda: all(len(writer.acknowledged) >= 20 for writer in writers), "writers write")
        assert broker.terminate() == 0
        for writer in writers:
            writer.join(10)
            assert not writer.is_alive()
            assert writer.refused == [], "a stop refuses nothing that it has taken"
        marker = json.loads((broker.data / ".kafka_cleanshutdown").read_text())
        assert "version" in marker
        assert surprises(broker.log()) == []

        broker.start()
        assert "unclean" not in broker.log()
        with Client(broker.address) as client:
            for partition, writer in enumerate(writers):
                stored = {
                    batch.header.base_offset: batch.values[0] for batch in client.read_all("t", partition)
                }
                missing = [
                    offset for offset, value in writer.acknowledged.items() if stored.get(offset) != value
                ]
                assert missing == []
                # The last batch of a writer may have been stored without its answer arriving.
                assert len(stored) - len(writer.acknowledged) <= 1


def test_a_fetch_that_waits_is_answered_by_the_stop(tmp_path: Path) -> None:
    with Broker(tmp_path, {"metrics.listener": "127.0.0.1:0"}) as broker, Client(broker.address) as client:
        client.create_topic("t")
        client.send(fetch_request("t", 0, 0, max_wait_ms=60_000), 11)
        # A second one is on its way behind it, as a client sends that does not wait for answers.
        client.send(fetch_request("t", 0, 0, max_wait_ms=60_000), 11)
        waiting = "kafka_server_delayedoperationpurgatory_numdelayedoperations"
        eventually(lambda: scrape(broker)(waiting, delayedOperation="Fetch") == 1, "the fetch waits")
        broker.process.terminate()
        answer = client.receive(FetchRequest, 11)
        assert isinstance(answer, FetchResponse)
        (partition,) = answer.responses[0].partitions
        assert (partition.error_code, partition.high_watermark) == (0, 0)
        assert broker.wait(patience(4.0)) == 0, "nobody is waited for that only waits"


def test_a_second_signal_changes_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.process.terminate()
        broker.process.terminate()
        assert broker.wait() == 0
        assert (broker.data / ".kafka_cleanshutdown").exists()


def test_connections_are_refused_once_it_has_stopped_and_taken_again_after(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        address = broker.address
        broker.terminate()
        with pytest.raises(OSError):
            Client(address)
        broker.start()
        assert broker.address == address
        Client(address).close()
