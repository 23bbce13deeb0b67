"""A crash may lose the end of a log. Records that get its offsets afterwards have another leader epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.client import Client, batch_of, fetch_request
from tests.support.broker import Broker
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)


def leader_epochs(client: Client, topic: str) -> dict[int, int]:
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    answer = client.ask(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
    return {partition.partition_index: partition.leader_epoch for partition in answer.topics[0].partitions}


def end_of_epoch(client: Client, topic: str, epoch: int) -> tuple[int, int]:
    """The largest epoch that is not above, and where it ended, as a consumer asks for it."""
    partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[partition])
    answer = client.ask(OffsetForLeaderEpochRequest(topics=[asked]), OffsetForLeaderEpochResponse, 3)
    (found,) = answer.topics[0].partitions
    assert found.error_code == 0
    return found.leader_epoch, found.end_offset


def test_records_that_get_the_offsets_of_lost_ones_have_another_epoch(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("t") == 0
            for value in (b"kept", b"lost", b"lost too"):
                assert client.produce("t", 0, batch_of(value)).error == 0
            assert leader_epochs(client, "t") == {0: 0}
            kept = len(client.fetch("t", 0, 0).records or b"") // 3
        broker.kill()
        broker.process.wait(30)
        log = next(broker.data.glob("t-0/*.log"))
        log.write_bytes(log.read_bytes()[: kept + 10])  # as a power failure may leave it
        broker.start()
        with Client(broker.address) as client:
            assert leader_epochs(client, "t") == {0: 1}
            assert client.produce("t", 0, batch_of(b"other")) == (0, 1)
            # A consumer that has read up to offset 3 with epoch 0 learns that the epoch ended before.
            assert end_of_epoch(client, "t", 0) == (0, 1)
            assert end_of_epoch(client, "t", 1) == (1, 2)
            request = fetch_request("t", 0, 1)
            request.topics[0].partitions[0].current_leader_epoch = 0
            answer = client.ask(request, FetchResponse, 11).responses[0].partitions[0]
            assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_every_crash_raises_the_epoch_and_no_clean_stop_does(tmp_path: Path) -> None:
    seen = []
    with Broker(tmp_path) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("t", 3) == 0
            seen.append(leader_epochs(client, "t"))
        for kill in (False, True, True, False):
            broker.restart(kill=kill)
            with Client(broker.address) as client:
                seen.append(leader_epochs(client, "t"))
                assert client.produce("t", 0, batch_of(b"x")).error == 0
    assert [set(epochs.values()) for epochs in seen] == [{0}, {0}, {1}, {2}, {2}]


@pytest.mark.parametrize("left_cleanly", [0, 1])
def test_only_partitions_of_the_folder_that_was_not_left_cleanly_are_led_anew(
    tmp_path: Path, left_cleanly: int
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    with Broker(tmp_path, {"log.dirs": ",".join(map(str, folders))}) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("t", 4) == 0
        broker.terminate()
        unclean = folders[1 - left_cleanly]
        (unclean / ".kafka_cleanshutdown").unlink()
        raised = {int(path.name[2:]) for path in unclean.glob("t-*")}
        broker.start()
        with Client(broker.address) as client:
            assert leader_epochs(client, "t") == {index: int(index in raised) for index in range(4)}
