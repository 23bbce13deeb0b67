"""Producer ids come from blocks; the next block is there before the present one is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from tidelog.errors import CoordinatorLoadInProgress, KafkaError, NetworkException
from tidelog.server.producer_ids import RETRY_SECONDS, WAIT_SECONDS, ProducerIds

BLOCK = 10


class Controller:
    """Gives out blocks of ten ids, each when the test lets it."""

    def __init__(self) -> None:
        self.requests: list[asyncio.Future[range]] = []
        self.ids = ProducerIds(self.allocate)
        self.given: list[int] = []
        self.refused: list[KafkaError] = []

    async def allocate(self) -> range:
        answer: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self.requests.append(answer)
        return await answer

    async def answer(self) -> None:
        """Answer the last request with the next block."""
        await settle()
        first = BLOCK * (len(self.requests) - 1)
        self.requests[-1].set_result(range(first, first + BLOCK))
        await settle()

    def ask(self, times: int = 1) -> None:
        for _ in range(times):
            self.ids.request(self.given.append, self.refused.append)


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def on_loop(test: Callable[[Controller], Coroutine[None, None, None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            controller = Controller()
            await test(controller)
            controller.ids.close()

        with asyncio.Runner(loop_factory=QuickLoop) as runner:
            runner.run(main())

    run.__name__ = test.__name__
    return run


@on_loop
async def test_the_first_requests_wait_for_the_first_block(controller: Controller) -> None:
    controller.ask(3)
    await controller.answer()
    assert controller.given == [0, 1, 2]
    assert len(controller.requests) == 1


@on_loop
async def test_the_next_block_is_requested_when_nine_tenths_are_used(controller: Controller) -> None:
    controller.ask()
    await controller.answer()
    controller.ask(7)
    await settle()
    assert len(controller.requests) == 1
    controller.ask()
    await settle()
    assert len(controller.requests) == 2
    await controller.answer()
    controller.ask(5)
    assert controller.given == list(range(14))
    assert len(controller.requests) == 2


@on_loop
async def test_requests_behind_the_end_of_the_block_wait_for_the_next(controller: Controller) -> None:
    controller.ask()
    await controller.answer()
    controller.ask(BLOCK + 2)
    assert controller.given == list(range(BLOCK))
    await controller.answer()
    assert controller.given == list(range(BLOCK + 3))


@on_loop
async def test_more_requests_than_a_block_has_ids_are_answered_by_several(controller: Controller) -> None:
    controller.ask(25)
    for _ in range(3):
        await controller.answer()
    assert controller.given == list(range(25))


@on_loop
async def test_a_failed_request_is_made_again_while_somebody_waits(controller: Controller) -> None:
    controller.ask()
    await settle()
    controller.requests[0].set_exception(NetworkException("the controller moved"))
    await asyncio.sleep(2 * RETRY_SECONDS)
    await controller.answer()
    assert controller.given == [BLOCK]
    assert controller.refused == []


@on_loop
async def test_without_a_block_clients_come_again(controller: Controller) -> None:
    controller.ask()
    await asyncio.sleep(WAIT_SECONDS / 2)
    controller.ask()
    await asyncio.sleep(WAIT_SECONDS * 0.6)
    assert [type(error) for error in controller.refused] == [CoordinatorLoadInProgress]
    await asyncio.sleep(WAIT_SECONDS)
    assert len(controller.refused) == 2
    await controller.answer()
    controller.ask()
    assert controller.given == [0]


@on_loop
async def test_the_end_answers_the_waiting_requests(controller: Controller) -> None:
    controller.ask(2)
    controller.ids.close()
    assert [type(error) for error in controller.refused] == [CoordinatorLoadInProgress] * 2
