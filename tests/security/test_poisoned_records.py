"""Records in internal topics that no broker wrote: a start reads past them, and groups and transactions work.

Such records come from a damaged or adopted folder, or from a bug; a broker that stops at one would stop at
every start.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.client import surprises
from tests.server.filled_requests import FilledRequests
from tests.support.broker import Broker
from tests.support.raw import RawConnection
from tests.support.scale import scale
from tests.support.wait import eventually
from tests.transactions.by_hand import open_transaction
from tidelog.protocol.api import ApiKey
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tidelog.protocol.messages.offset_commit import OffsetCommitResponse
from tidelog.records.batch import Record, build_batch, iter_batches, read_records

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
NOW = 1_700_000_000_000


def logs_of(broker: Broker, topic: str) -> list[Path]:
    return sorted(broker.data.glob(f"{topic}-*/*.log"))


def written(log: Path) -> tuple[list[Record], int]:
    """All records of a segment, and the offset after them."""
    data = log.read_bytes()
    records: list[Record] = []
    end = 0
    for position, header in iter_batches(data):
        records += [record for record in read_records(data, position) if record.key is not None]
        end = header.next_offset
    return records, end


def mutated(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            changed[at : at + 2] = chance.choice([b"\xff\xff", b"\x7f\xff", b"\0\0", b"\x80\0"])
        elif kind == 1:
            changed[at:at] = chance.randbytes(3)
        elif kind == 2:
            del changed[at:]
        else:
            changed[at : at + 4] = chance.randbytes(4)
    return bytes(changed)


def poison(log: Path, pattern: list[Record], chance: random.Random, count: int) -> None:
    """Append batches of records that look nearly like the given ones."""
    _, end = written(log)
    batches = []
    for number in range(count):
        like = chance.choice(pattern)
        key, value = like.key or b"", like.value or b""
        pick = chance.randrange(5)
        record = Record(
            end + number,
            NOW,
            None if pick == 0 else mutated(chance, key) if pick in (1, 2) else key,
            None if pick == 1 else mutated(chance, value),
        )
        batches.append(build_batch([record], base_offset=end + number))
    with log.open("ab") as out:
        out.write(b"".join(batches))


@pytest.mark.parametrize("seed", range(scale(3, 200)))
def test_a_broker_starts_over_records_that_no_broker_wrote(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    settings = {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    with Broker(tmp_path, settings) as broker:
        with RawConnection(broker.address) as connection:
            topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
            connection.call(CreateTopicsRequest(topics=[topic]), 7)
            make = FilledRequests(connection)
            eventually(lambda: commits(connection), "a coordinator of groups")
            make.member("classic")
            make.consumer_member("consumer")
            open_transaction(connection, "t", transactional_id="open")
        broker.kill()
        for topic_name in (OFFSETS, TRANSACTIONS):
            (log,) = logs_of(broker, topic_name)
            records, _ = written(log)
            assert len(records) > 1
            poison(log, records, chance, 300)
        broker.start()
        with RawConnection(broker.address) as connection:
            eventually(lambda: commits(connection), "the coordinator of groups loads")
            open_transaction(connection, "t", transactional_id="after")
        assert broker.running
        assert [line[:400] for line in surprises(broker.log())] == []


def commits(connection: RawConnection) -> bool:
    """The first FindCoordinator makes the topic of the groups."""
    connection.call(FindCoordinatorRequest(key="g"), 3)
    request = FilledRequests(connection).of(ApiKey.OFFSET_COMMIT, 9)
    answer = connection.ask(request, OffsetCommitResponse, 9)
    return answer.topics[0].partitions[0].error_code == 0
