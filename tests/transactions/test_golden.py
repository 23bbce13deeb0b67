"""The transactions in folders that Kafka 3.9 left behind: their states, and the end of the open one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adopt.test_golden_folders import adopted_broker
from tests.support import golden
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tests.transactions.by_hand import described
from tests.transactions.reading import read
from tidelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"


def states(connection: RawConnection) -> dict[str, str]:
    answer = connection.ask(ListTransactionsRequest(), ListTransactionsResponse, 2)
    return {found.transactional_id: found.transaction_state for found in answer.transaction_states}


@pytest.mark.parametrize("kind", golden.KINDS)
def test_what_kafka_left_open_is_open_here_until_its_time_is_over(kind: str, tmp_path: Path) -> None:
    with adopted_broker(kind, tmp_path, {INTERVAL: "3600000"}) as broker:
        with RawConnection(broker.address) as connection:
            eventually(lambda: states(connection).get("tx-open") == "Ongoing", "it is open")
            assert set(states(connection).values()) <= {"Ongoing", "CompleteCommit", "CompleteAbort", "Empty"}
            (topic,) = described(connection, "tx-open").topics
        index = topic.partitions[0]
        committed = golden.expected_committed((topic.topic, index))
        assert len(read(broker.bootstrap, topic.topic, index + 1)[index]) == len(committed)
        broker.settings[INTERVAL] = "200"
        broker.restart()
        with RawConnection(broker.address) as connection:
            eventually(lambda: states(connection)["tx-open"] == "CompleteAbort", "it is aborted")
        assert len(read(broker.bootstrap, topic.topic, index + 1)[index]) >= len(committed)
