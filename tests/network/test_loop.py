"""The loop is asyncio's, calls the broker's descriptors directly, and is the broker's scheduler."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tidelog.clock import ManualClock, Scheduler
from tidelog.network.loop import READ, WRITE, BrokerLoop


@pytest.fixture
def loop() -> Iterator[BrokerLoop]:
    made = BrokerLoop(io_threads=2)
    made.set_exception_handler(lambda _, context: None)
    yield made
    made.close()


def run(loop: BrokerLoop, seconds: float = 10) -> None:
    """Run until something stops the loop."""
    late: list[bool] = []

    def give_up() -> None:  # asyncio would report an exception here and go on
        late.append(True)
        loop.stop()

    guard = loop.call_later(seconds, give_up)
    loop.run_forever()
    guard.cancel()
    assert not late, "nothing stopped the loop"


def test_it_is_a_scheduler(loop: BrokerLoop) -> None:
    scheduler: Scheduler = loop
    assert abs(scheduler.clock.ms() - scheduler.clock.ms()) < 1000
    clock = ManualClock()
    other = BrokerLoop(clock=clock)
    assert other.clock is clock
    other.close()


def test_a_ready_descriptor_is_called_with_its_mask(loop: BrokerLoop) -> None:
    near, far = socket.socketpair()
    masks: list[int] = []

    def on_event(mask: int) -> None:
        masks.append(mask)
        if mask == READ:
            near.recv(1)
            loop.modify(near.fileno(), WRITE)
        else:
            loop.unregister(near.fileno())
            loop.stop()

    loop.register(near.fileno(), on_event, READ)
    far.send(b"x")
    run(loop)
    assert masks == [READ, WRITE]
    near.close()
    far.close()


def test_a_callback_that_fails_does_not_stop_the_others(loop: BrokerLoop) -> None:
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    pairs = [socket.socketpair() for _ in range(3)]
    called: list[int] = []

    def fail(number: int) -> None:
        near = pairs[number][0]
        near.recv(1)
        called.append(number)
        if len(called) == 3:
            loop.stop()
        raise ValueError(number)

    for number, (near, far) in enumerate(pairs):
        loop.register(near.fileno(), lambda mask, number=number: fail(number), READ)  # type: ignore[misc]
        far.send(b"x")
    run(loop)
    assert sorted(called) == [0, 1, 2]
    assert len(failures) == 3
    for near, far in pairs:
        loop.unregister(near.fileno())
        near.close()
        far.close()


def test_work_of_a_turn_runs_after_all_its_events_and_before_the_next_poll(loop: BrokerLoop) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    order: list[str] = []

    def end_of_turn() -> None:
        order.append("end")
        if len(order) == 6:
            loop.stop()

    def on_event(near: socket.socket) -> None:
        near.recv(1)
        order.append("event")
        loop.call_soon_in_turn(end_of_turn)

    for near, far in pairs:
        loop.register(near.fileno(), lambda mask, near=near: on_event(near), READ)  # type: ignore[misc]
        far.send(b"x")
    run(loop)
    assert order == ["event"] * 3 + ["end"] * 3
    for near, far in pairs:
        loop.unregister(near.fileno())
        near.close()
        far.close()


def test_work_of_a_turn_asked_for_by_a_task_or_a_timer_does_not_wait(loop: BrokerLoop) -> None:
    order: list[str] = []

    def second() -> None:
        order.append("second")
        loop.call_soon(loop.stop)

    def first() -> None:
        order.append("first")
        loop.call_soon_in_turn(second)

    loop.schedule(0.0, lambda: loop.call_soon_in_turn(first))
    run(loop)
    assert order == ["first", "second"]


def test_work_that_always_asks_for_more_does_not_keep_events_waiting(loop: BrokerLoop) -> None:
    near, far = socket.socketpair()

    def again() -> None:
        loop.call_soon_in_turn(again)

    loop.register(near.fileno(), lambda mask: loop.stop(), READ)
    loop.call_soon_in_turn(again)
    far.send(b"x")
    run(loop)
    loop.unregister(near.fileno())
    near.close()
    far.close()


def test_tasks_timers_and_streams_work_as_in_asyncio(loop: BrokerLoop) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(3))
        writer.close()

    async def scenario() -> bytes:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"abc")
        answer = await reader.read()
        writer.close()
        server.close()
        await asyncio.sleep(0.001)
        return answer + await asyncio.to_thread(bytes, b"!")

    assert loop.run_until_complete(asyncio.wait_for(scenario(), 10)) == b"abc!"
    loop.run_until_complete(loop.shutdown_default_executor())


def test_a_cancelled_timer_does_not_run(loop: BrokerLoop) -> None:
    ran: list[str] = []
    loop.schedule(0.001, lambda: ran.append("cancelled")).cancel()
    loop.schedule(0.002, loop.stop)
    run(loop)
    assert ran == []


def test_blocking_work_runs_in_a_thread_and_ends_on_the_loop(loop: BrokerLoop) -> None:
    threads: list[str] = []
    results: list[tuple[object, object]] = []

    def work() -> int:
        threads.append(threading.current_thread().name)
        return 42

    def fail() -> int:
        raise ValueError("no")

    def done(result: int | None, error: BaseException | None) -> None:
        threads.append(threading.current_thread().name)
        results.append((result, type(error)))
        if len(results) == 2:
            loop.stop()

    loop.run_blocking(work, lambda result, error: (done(result, error), loop.run_blocking(fail, done))[0])
    run(loop)
    assert results == [(42, type(None)), (None, ValueError)]
    assert threads[0].startswith("tidelog-io-")
    assert threads[1] == threads[2] == threading.current_thread().name


def test_much_blocking_work_all_comes_back(loop: BrokerLoop) -> None:
    results: list[int | None] = []

    def done(result: int | None, error: BaseException | None) -> None:
        results.append(result)
        if len(results) == 500:
            loop.stop()

    for n in range(500):
        loop.run_blocking(lambda n=n: n, done)  # type: ignore[misc]
    run(loop)
    assert sorted(filter(None, results)) == list(range(1, 500))
    assert sum(thread.name.startswith("tidelog-io-") for thread in threading.enumerate()) <= 2


def test_closing_ends_threads_and_returns_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    loop = BrokerLoop(io_threads=1)
    loop.run_blocking(lambda: None, lambda result, error: loop.stop())
    loop.run_forever()
    loop.close()
    loop.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tidelog-io-")]


def test_waiting_counts_as_idle(loop: BrokerLoop) -> None:
    loop.schedule(0.03, loop.stop)
    run(loop)
    assert loop.idle_seconds >= 0.02


def test_what_threads_post_runs_on_the_loop_in_the_order_of_each(loop: BrokerLoop) -> None:
    ran: list[tuple[str, int]] = []
    threads = {threading.get_ident()}

    def work(name: str) -> None:
        for number in range(500):
            loop.post(lambda number=number: (ran.append((name, number)), threads.add(threading.get_ident())))  # type: ignore[misc]
        loop.post(ended)

    left = ["a", "b"]

    def ended() -> None:
        left.pop()
        if not left:
            loop.stop()

    posting = [threading.Thread(target=work, args=(name,)) for name in left]
    for thread in posting:
        thread.start()
    run(loop)
    for thread in posting:
        thread.join()
    assert threads == {threading.get_ident()}
    for name in ("a", "b"):
        assert [number for who, number in ran if who == name] == list(range(500))


def test_a_sleeping_loop_is_woken_by_a_post_and_a_waking_one_is_not_told_twice(loop: BrokerLoop) -> None:
    woken: list[int] = []
    on_wakeup = loop.direct._direct[loop._wakeup]

    def count(mask: int) -> None:
        woken.append(mask)
        on_wakeup(mask)

    loop.direct._direct[loop._wakeup] = count
    rounds = 20

    def work() -> None:
        for _ in range(rounds):
            arrived = threading.Event()
            while not loop.direct.asleep:
                os.sched_yield()
            loop.post(lambda: None)
            loop.post(arrived.set)
            if not arrived.wait(10):
                return  # and nothing stops the loop
        loop.post(loop.stop)

    thread = threading.Thread(target=work)
    thread.start()
    run(loop)
    thread.join()
    assert rounds <= len(woken) <= 2 * rounds + 1


@pytest.mark.parametrize("look", [1, 2])
def test_a_post_between_the_last_look_and_the_sleep_is_not_lost(loop: BrokerLoop, look: int) -> None:
    class Posted(deque[Callable[[], None]]):
        """As if another thread posted right after the loop found nothing, at its first or second look."""

        looks = 0

        def __bool__(self) -> bool:
            found = len(self) > 0
            self.looks += 1
            if self.looks == look:
                loop.post(loop.stop)
            return found

    loop.direct.posted = Posted()
    run(loop)


def test_a_post_from_the_loop_itself_does_not_wait_for_an_event(loop: BrokerLoop) -> None:
    loop.call_soon(lambda: loop.post(loop.stop))
    run(loop)


def test_a_post_that_fails_is_reported_and_the_next_one_runs(loop: BrokerLoop) -> None:
    reported: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    loop.post(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    loop.post(loop.stop)
    run(loop)
    assert [type(error) for error in reported] == [ZeroDivisionError]


def test_a_closed_loop_takes_no_post() -> None:
    made = BrokerLoop()
    made.close()
    with pytest.raises(RuntimeError):
        made.post(lambda: None)
