"""A coroutine that sends in a loop does not keep other tasks, timers and the producer itself from running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.clients.fake_broker import FakeBroker
from tidelog.clients.fair_turns import LONGEST_TURN, FairTurns
from tidelog.clients.producer.producer import AsyncProducer

SENDS = 150_000
STEP = 5e-6

Send = Callable[[AsyncProducer, int], Awaitable[object]]


def with_value(producer: AsyncProducer, number: int) -> Awaitable[object]:
    return producer.send("t", b"v")


def with_key(producer: AsyncProducer, number: int) -> Awaitable[object]:
    return producer.send("t", b"v", key=b"key %d" % (number % 50))


def with_headers(producer: AsyncProducer, number: int) -> Awaitable[object]:
    return producer.send("t", b"v", headers=[("h", b"1")])


class VirtualTime:
    """Each send takes 5 us: the clock moves with the sends, and the longest turn is measured by it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.others_ran_at = 0.0
        self.longest = 0.0
        self.turns = 0

    def __call__(self) -> float:
        return self.now

    async def others(self) -> None:
        while True:
            self.turns += 1
            self.longest = max(self.longest, self.now - self.others_ran_at)
            self.others_ran_at = self.now
            await asyncio.sleep(0)


@pytest.mark.parametrize("send", [with_value, with_key, with_headers])
def test_others_get_a_turn_every_few_milliseconds(send: Send) -> None:
    sends = SENDS if send is with_value else SENDS // 5
    clock = VirtualTime()

    async def main(broker: FakeBroker) -> None:
        async with AsyncProducer(
            bootstrap_servers=broker.bootstrap, batch_size=1_000_000, buffer_memory=100_000_000
        ) as producer:
            await (await producer.send("t", b"first"))  # type: ignore[func-returns-value]
            producer._core.turns._clock = clock
            producer._core.turns.restart()
            others = asyncio.ensure_future(clock.others())
            for number in range(sends):
                clock.now += STEP
                await send(producer, number)
            others.cancel()

    with FakeBroker(partitions=4) as broker:
        asyncio.run(main(broker))
    assert clock.longest <= 2 * LONGEST_TURN
    assert clock.turns >= sends * STEP / LONGEST_TURN / 2


def test_batches_are_sent_while_a_coroutine_sends_without_a_pause() -> None:
    async def main(broker: FakeBroker) -> int:
        async with AsyncProducer(
            bootstrap_servers=broker.bootstrap, batch_size=8_000_000, linger_ms=1, buffer_memory=100_000_000
        ) as producer:
            await (await producer.send("t", b"first"))
            first = len(broker.produced)
            for number in range(1_000_000):
                await producer.send("t", b"v")
                if len(broker.produced) > first:
                    return number
        raise AssertionError("nothing was sent before the loop of sends ended")

    with FakeBroker() as broker:
        assert asyncio.run(main(broker)) < 1_000_000


def test_a_send_that_is_cancelled_while_others_run_takes_no_record() -> None:
    async def main(broker: FakeBroker) -> None:
        async with AsyncProducer(bootstrap_servers=broker.bootstrap) as producer:
            await (await producer.send("t", b"first"))
            cancelled = 0
            for _ in range(300):
                producer._core.turns._began = 0.0
                sending = asyncio.ensure_future(producer.send("t", b"v"))
                await asyncio.sleep(0)
                if not sending.done():
                    sending.cancel()
                    cancelled += 1
                    with pytest.raises(asyncio.CancelledError):
                        await sending
            await producer.flush()
            assert cancelled
            assert len(broker.logs["t", 0]) == 301 - cancelled

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_a_turn_ends_when_it_was_long() -> None:
    async def main() -> None:
        now = 0.0
        turns = FairTurns(lambda: now)
        ran = 0

        def others() -> None:
            nonlocal ran
            ran += 1

        for _ in range(10):
            now += LONGEST_TURN * 0.3
            asyncio.get_running_loop().call_soon(others)
            before = ran
            await turns.pass_on()
            if ran > before:
                turns.restart()
        assert ran

    asyncio.run(main())
