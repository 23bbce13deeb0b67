"""Processes, links and hosts of the simulated world behave as those of a machine room."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog.simulation.process import Process
from tidelog.simulation.world import World

PORT = 9092


@pytest.fixture
def world() -> Iterator[World]:
    with World(1).running() as world:
        yield world


class Echo:
    """Accepts connections and sends back what comes."""

    def __init__(self) -> None:
        self.received = b""
        self.closed = 0

    async def main(self, process: Process) -> None:
        loop = process.loop
        listener = loop.open_socket(0, 0, 0)
        listener.bind((process.host.name, PORT))
        listener.listen(10)

        def accept(_: int) -> None:
            sock, _address = listener.accept()
            loop.register(sock.fileno(), lambda mask: echo(sock))

        def echo(sock) -> None:  # type: ignore[no-untyped-def]
            data = sock.recv(100)
            if not data:
                self.closed += 1
                loop.unregister(sock.fileno())
                sock.close()
                return
            self.received += data
            sock.send(data)

        loop.register(listener.fileno(), accept)
        await asyncio.Event().wait()


async def connected(process: Process, host: str):  # type: ignore[no-untyped-def]
    sock = process.loop.open_socket(0, 0, 0)
    await process.loop.sock_connect(sock, (host, PORT))
    return sock


class Caller:
    """Sends a few bytes every second and keeps the answers and errors."""

    def __init__(self) -> None:
        self.answers = b""
        self.error: OSError | None = None

    async def main(self, process: Process) -> None:
        await asyncio.sleep(0.1)
        try:
            sock = await connected(process, "server")
            process.loop.add_reader(sock.fileno(), lambda: self._read(sock))
            while True:
                sock.send(b"x")
                await asyncio.sleep(1.0)
        except OSError as error:
            self.error = error

    def _read(self, sock) -> None:  # type: ignore[no-untyped-def]
        try:
            self.answers += sock.recv(100)
        except OSError as error:
            self.error = error


def start(world: World) -> tuple[Process, Process, Echo, Caller]:
    echo, caller = Echo(), Caller()
    return world.start("server", "server", echo.main), world.start("a", "client", caller.main), echo, caller


def test_time_passes_only_as_the_world_says(world: World) -> None:
    seen: list[float] = []

    async def main(process: Process) -> None:
        await asyncio.sleep(3600.0)
        seen.append(process.loop.time())

    world.start("sleeper", "host", main)
    world.run(7200.0)
    assert seen == pytest.approx([3600.0], abs=0.001)
    assert world.steps < 10


def test_bytes_arrive_and_come_back(world: World) -> None:
    _, _, echo, caller = start(world)
    world.run(3.05)
    assert echo.received == caller.answers == b"xxx"


def test_nobody_listens_where_nothing_was_started(world: World) -> None:
    caller = Caller()
    world.start("a", "client", caller.main)
    world.run(1.0)
    assert isinstance(caller.error, ConnectionRefusedError)


def test_a_paused_process_gets_its_bytes_when_it_goes_on(world: World) -> None:
    server, _, echo, caller = start(world)
    world.run(0.5)
    server.pause()
    world.run(3.0)
    assert echo.received == b"x"
    server.resume()
    world.run(0.1)
    assert echo.received == caller.answers == b"xxxx"


def test_a_cut_link_holds_one_direction(world: World) -> None:
    _, _, echo, caller = start(world)
    world.run(0.5)
    world.network.cut("server", "client")
    world.run(2.0)
    assert (echo.received, caller.answers) == (b"xxx", b"x")
    world.network.restore("server", "client")
    world.run(0.1)
    assert caller.answers == b"xxx"


def test_a_slow_link_delays(world: World) -> None:
    _, _, _, caller = start(world)
    world.run(0.5)
    world.network.slow_down("client", "server", 10.0)
    world.run(1.5)
    assert caller.answers == b"x"
    world.run(10.0)
    assert len(caller.answers) > 1


def test_a_killed_process_resets_its_connections(world: World) -> None:
    server, _, _, caller = start(world)
    world.run(0.5)
    world.kill(server)
    world.run(2.0)
    assert caller.error is not None


def test_a_host_without_power_says_nothing_until_it_is_back(world: World) -> None:
    server, _, _, caller = start(world)
    world.run(0.5)
    world.lose_power(server)
    world.run(5.0)
    assert caller.error is None
    world.network.power_on("server")
    world.run(1.5)
    assert isinstance(caller.error, ConnectionResetError)


def test_a_connection_to_a_host_without_power_is_asked_for_again(world: World) -> None:
    echo, caller = Echo(), Caller()
    world.network.power_off("server")
    world.start("a", "client", caller.main)
    world.run(2.0)
    assert caller.error is None
    world.network.power_on("server")
    world.start("server", "server", echo.main)
    world.run(3.0)
    assert caller.answers


def test_a_kill_keeps_what_was_written_and_a_power_cut_what_was_synced(world: World) -> None:
    async def main(process: Process) -> None:
        disk = process.host.disk
        disk.make_dir("/data")
        disk.fsync_dir("/")
        disk.atomic_write("/data/synced", b"yes")
        disk.open("/data/synced").pwrite(b"no!", 0)
        await asyncio.Event().wait()

    process = world.start("writer", "host", main)
    world.run(1.0)
    world.kill(process)
    assert world.host("host").disk.read("/data/synced") == b"no!"
    process = world.start("writer", "host", main)
    world.run(1.0)
    world.lose_power(process)
    assert world.host("host").disk.read("/data/synced")[:1] in (b"y", b"n")


def test_the_last_steps_of_a_process_without_a_disk_end_without_a_word() -> None:
    with World(1).running() as world:

        async def main(process: Process) -> None:
            process.host.disk.make_dir("/data")
            file = process.host.disk.open("/data/file", create=True)
            try:
                await asyncio.Event().wait()
            finally:
                file.pwrite(b"x", 0)

        process = world.start("writer", "host", main)
        world.run(1.0)
        world.lose_power(process)


def test_work_of_threads_ends_with_its_process(world: World) -> None:
    ran: list[str] = []

    async def main(process: Process) -> None:
        process.loop.run_blocking(lambda: ran.append("early"), lambda result, error: ran.append("done"))
        await asyncio.sleep(1.0)
        process.loop.run_blocking(lambda: ran.append("late"), lambda result, error: ran.append("done"))
        await asyncio.Event().wait()

    process = world.start("worker", "host", main)
    world.run(1.00001)
    world.kill(process)
    world.run(1.0)
    assert ran == ["early", "done"]
    assert world.failures == []


def test_one_thread_runs_its_jobs_in_order(world: World) -> None:
    ran: list[int] = []

    async def main(process: Process) -> None:
        for number in range(50):
            process.loop.run_in_background(lambda number=number: ran.append(number), lambda *_: None)
        await asyncio.sleep(10.0)

    world.start("worker", "host", main)
    world.run(5.0)
    assert ran == list(range(50))


def test_an_error_that_nobody_handles_is_a_failure_of_the_run(world: World) -> None:
    async def main(process: Process) -> None:
        raise ValueError("wrong")

    world.start("broken", "host", main)
    world.run(1.0)
    assert world.failures == ["broken: the process failed: ValueError('wrong')"]


def test_a_slow_disk_delays_the_thread_that_uses_it_and_not_the_loop(world: World) -> None:
    turns: list[float] = []
    finished: list[float] = []

    async def main(process: Process) -> None:
        process.host.slow_disk_seconds = 0.1
        disk = process.host.disk

        def write() -> None:
            for number in range(100):
                disk.make_dir(f"/{number}")

        writing = process.loop.run_in_executor(None, write)
        writing.add_done_callback(lambda _: finished.append(process.loop.time()))
        while not writing.done():
            turns.append(process.loop.time())
            await asyncio.sleep(0.01)
        turns.append(process.loop.time())

    world.start("writer", "host", main)
    world.run(60.0)
    assert finished[0] > 2.0
    assert max(after - before for before, after in itertools.pairwise(turns)) < 0.02


def test_a_slow_disk_delays_the_loop_that_uses_it(world: World) -> None:
    seen: list[float] = []

    async def main(process: Process) -> None:
        process.host.slow_disk_seconds = 0.1
        for number in range(100):
            process.host.disk.make_dir(f"/{number}")
        await asyncio.sleep(0)
        seen.append(process.loop.time())

    world.start("writer", "host", main)
    world.run(60.0)
    assert seen[0] > 2.0


def test_a_pool_of_one_thread_ends_its_jobs_in_order(world: World) -> None:
    ended: list[int] = []

    async def main(process: Process) -> None:
        with ThreadPoolExecutor(1) as one_thread:
            jobs = [process.loop.run_in_executor(one_thread, process.sleep, 1.0 - 0.1 * n) for n in range(5)]
            for number, job in enumerate(jobs):
                job.add_done_callback(lambda _, number=number: ended.append(number))
            await asyncio.gather(*jobs)
            assert process.loop.time() == pytest.approx(4.0, abs=0.1)

    world.start("worker", "host", main)
    world.run(60.0)
    assert ended == [0, 1, 2, 3, 4]
    assert not world.failures
