"""The requests to the controller for new in-sync replicas: batches, versions, retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from tidelog.cluster.alter_partition_manager import (
    RETRY_SECONDS,
    AlteredPartition,
    AlterPartitionManager,
    IsrChange,
)
from tidelog.errors import ErrorCode, RequestTimedOut, UnsupportedVersion
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

TOPIC = b"T" * 16


class Controller:
    """Answers with what the test has put into `answers`: errors are raised, numbers are error codes."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, AlterPartitionRequest]] = []
        self.answers: list[Exception | int] = []
        self.codes: dict[int, int] = {}
        self.left_out: set[int] = set()
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, request: AlterPartitionRequest, *, version: int) -> AlterPartitionResponse:
        request.encode(version)
        self.requests.append((version, request))
        await self.open.wait()
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        response = AlterPartitionResponse(error_code=answer)
        for topic in request.topics if not answer else ():
            partitions = [
                AlterPartitionResponse.PartitionData(
                    partition_index=partition.partition_index,
                    error_code=self.codes.get(partition.partition_index, 0),
                    leader_id=1,
                    leader_epoch=partition.leader_epoch,
                    isr=partition.new_isr or [member.broker_id for member in partition.new_isr_with_epochs],
                    partition_epoch=partition.partition_epoch + 1,
                )
                for partition in topic.partitions
                if partition.partition_index not in self.left_out
            ]
            self.left_out.clear()
            response.topics.append(
                AlterPartitionResponse.TopicData(topic_id=topic.topic_id, partitions=partitions)
            )
        return response


class Stage:
    def __init__(self) -> None:
        self.controller = Controller()
        self.epoch = 50
        self.manager = AlterPartitionManager(1, lambda: self.epoch, self.controller.send)
        self.outcomes: dict[int, list[AlteredPartition | int]] = {}

    def submit(self, index: int = 0) -> None:
        outcomes = self.outcomes.setdefault(index, [])

        def answered(state: AlteredPartition | None, code: int) -> None:
            outcomes.append(code if state is None else state)

        self.manager.submit(IsrChange(("t", index), TOPIC, 4, 7, [(1, 50), (2, 60)], answered))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(RETRY_SECONDS / 10)

    async def answered(self, *indexes: int) -> None:
        await self.until(lambda: all(self.outcomes.get(index) for index in indexes))

    def asked(self) -> list[list[int]]:
        return [
            [partition.partition_index for topic in request.topics for partition in topic.partitions]
            for _, request in self.controller.requests
        ]


def run(work: Callable[[Stage], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        stage = Stage()
        await work(stage)
        await stage.manager.close()

    asyncio.run(whole())


CHANGED = AlteredPartition(1, 4, [1, 2], 8)


def test_changes_of_one_turn_share_a_request() -> None:
    async def work(stage: Stage) -> None:
        stage.submit(0)
        stage.submit(1)
        await stage.answered(0, 1)
        assert stage.asked() == [[0, 1]]
        version, request = stage.controller.requests[0]
        assert (version, request.broker_id, request.broker_epoch) == (3, 1, 50)
        members = request.topics[0].partitions[0].new_isr_with_epochs
        assert [(member.broker_id, member.broker_epoch) for member in members] == [(1, 50), (2, 60)]
        assert stage.outcomes == {0: [CHANGED], 1: [CHANGED]}

    run(work)


def test_a_change_right_after_the_last_answer_is_asked_for() -> None:
    async def work(stage: Stage) -> None:
        loop = asyncio.get_running_loop()

        def answered(_: AlteredPartition | None, code: int) -> None:
            loop.call_soon(stage.submit, 1)

        stage.manager.submit(IsrChange(("t", 0), TOPIC, 4, 7, [(1, 50)], answered))
        await stage.answered(1)
        assert stage.asked() == [[0], [1]]

    run(work)


def test_changes_during_a_request_go_with_the_next() -> None:
    async def work(stage: Stage) -> None:
        stage.controller.open.clear()
        stage.submit(0)
        await stage.until(lambda: len(stage.controller.requests) == 1)
        stage.submit(1)
        stage.submit(2)
        stage.submit(0)
        assert stage.outcomes[0] == [ErrorCode.OPERATION_NOT_ATTEMPTED]
        stage.controller.open.set()
        await stage.answered(1, 2)
        assert stage.asked() == [[0], [1, 2]]
        assert stage.outcomes[0] == [ErrorCode.OPERATION_NOT_ATTEMPTED, CHANGED]

    run(work)


@pytest.mark.parametrize(
    "failure",
    [RequestTimedOut("late"), ErrorCode.STALE_BROKER_EPOCH, ErrorCode.CLUSTER_AUTHORIZATION_FAILED],
)
def test_a_request_that_fails_as_a_whole_is_sent_again(failure: Exception | int) -> None:
    async def work(stage: Stage) -> None:
        stage.controller.answers = [failure]
        stage.submit(0)
        await stage.until(lambda: len(stage.controller.requests) == 1)
        stage.epoch = 51  # the broker has registered anew
        await stage.answered(0)
        assert [request.broker_epoch for _, request in stage.controller.requests] == [50, 51]
        assert stage.outcomes == {0: [CHANGED]}

    run(work)


def test_an_older_controller_gets_the_version_without_epochs() -> None:
    async def work(stage: Stage) -> None:
        stage.controller.answers = [UnsupportedVersion("no version 3")]
        stage.submit(0)
        await stage.answered(0)
        assert [version for version, _ in stage.controller.requests] == [3, 2]
        assert stage.controller.requests[1][1].topics[0].partitions[0].new_isr == [1, 2]
        assert stage.outcomes == {0: [CHANGED]}

    run(work)


def test_each_partition_has_its_own_error() -> None:
    async def work(stage: Stage) -> None:
        stage.controller.codes = {1: ErrorCode.INVALID_UPDATE_VERSION}
        stage.submit(0)
        stage.submit(1)
        await stage.answered(0, 1)
        assert stage.outcomes == {0: [CHANGED], 1: [ErrorCode.INVALID_UPDATE_VERSION]}

    run(work)


def test_a_partition_that_the_answer_lacks_is_asked_for_again() -> None:
    async def work(stage: Stage) -> None:
        stage.controller.left_out = {1}
        stage.submit(0)
        stage.submit(1)
        await stage.answered(0, 1)
        assert stage.asked() == [[0, 1], [1]]

    run(work)


def test_a_change_that_its_answer_asks_for_is_sent() -> None:
    """An error may make the leader ask again, within the call."""

    async def work(stage: Stage) -> None:
        outcomes: list[int] = []

        def answered(state: AlteredPartition | None, code: int) -> None:
            outcomes.append(code)
            if code:
                stage.controller.codes = {}
                stage.manager.submit(change)

        change = IsrChange(("t", 0), TOPIC, 4, 7, [(1, 50)], answered)
        stage.controller.codes = {0: ErrorCode.UNKNOWN_SERVER_ERROR}
        stage.manager.submit(change)
        await stage.until(lambda: len(outcomes) == 2)
        assert outcomes == [ErrorCode.UNKNOWN_SERVER_ERROR, 0]

    run(work)
