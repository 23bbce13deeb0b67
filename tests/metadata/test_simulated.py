"""The simulated ZooKeeper loses connections and sessions as a real one, and by its seed."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tests.metadata.follower import Follower
from tests.metadata.trees import run
from tests.support.scale import scale
from tests.support.virtual_loop import VirtualLoop
from tests.support.wait import eventually_async
from tidelog.metadata.async_tree import AsyncTree, ConnectionLost, SessionEvent, SessionExpired
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.metadata.tree import NoNode, Operation, TreeError, TreeUnavailable, WatchEvent
from tidelog.metadata.zookeeper import ZooKeeperSettings
from tidelog.metadata.zookeeper.connection import Connection, ConnectionListener
from tidelog.metadata.zookeeper.session import Session

T = TypeVar("T")
SECONDS_6 = ZooKeeperSettings(session_timeout=6.0)


def simulate(story: Callable[[SimulatedZooKeeper], Awaitable[T]], seed: int = 1, *, loss: float = 0.0) -> T:
    async def with_server() -> T:
        server = SimulatedZooKeeper(asyncio.get_running_loop(), random.Random(seed), loss=loss)
        return await story(server)

    return run(VirtualLoop, with_server)


async def open_tree(server: SimulatedZooKeeper, client: str = "client") -> SimulatedTree:
    return await SimulatedTree.open(server, client, rng=random.Random(client), settings=SECONDS_6)


async def write_until_known(tree: AsyncTree, path: str, data: bytes) -> bool:
    """Set a node, and read it if the outcome is not known. Whether the first attempt was made."""
    try:
        await tree.set(path, data)
    except ConnectionLost:
        return (await tree.get(path))[0] == data
    return True


def test_the_outcome_of_a_write_on_a_lost_connection_is_one_or_the_other() -> None:
    made: list[bool] = []

    async def story(server: SimulatedZooKeeper) -> None:
        server.loss = 0.0
        tree = await open_tree(server)
        await tree.create("/a")
        server.loss = 0.3
        for number in range(50):
            data = b"%d" % number
            version = server.tree.get("/a")[1].version
            made.append(await write_until_known(tree, "/a", data))
            after, stat = server.tree.get("/a")
            assert (after == data, stat.version) == (made[-1], version + made[-1])
        server.loss = 0.0
        await tree.close()

    for seed in range(scale(5, 50)):
        simulate(story, seed)
    assert 0 < made.count(False) < len(made) // 2


def test_a_short_cut_of_the_link_is_not_noticed_by_callers() -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree = await open_tree(server)
        events: list[SessionEvent] = []
        tree.listen(events.append)
        session = tree.session_id
        await tree.create("/e", ephemeral=True)
        server.cut("client")
        read = asyncio.ensure_future(tree.get("/e"))
        await asyncio.sleep(2.0)
        assert not read.done()
        server.heal("client")
        assert (await read)[1].ephemeral_owner == session == tree.session_id
        assert events == []
        await tree.close()

    simulate(story)


@pytest.mark.parametrize(("to_server", "to_client"), [(True, True), (True, False), (False, True)])
def test_a_long_cut_ends_the_session_after_its_timeout(to_server: bool, to_client: bool) -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree, other = await open_tree(server), await open_tree(server, "other")
        events: list[tuple[SessionEvent, int]] = []
        tree.listen(lambda event: events.append((event, tree.session_id)))
        old = tree.session_id
        await tree.create("/e", ephemeral=True)
        seen: list[WatchEvent] = []
        await other.exists("/e", seen.append)
        loop = asyncio.get_running_loop()
        start = loop.time()
        server.cut("client", to_server=to_server, to_client=to_client)
        calls = [asyncio.ensure_future(call) for call in (tree.get("/e"), tree.set("/e", b"x"))]
        if to_client and not to_server:
            # Pings arrive until the client gives up, after two thirds of the time-out.
            await eventually_async(lambda: seen, "the change is seen", 60.0)
            await other.exists("/e", seen.append)
            seen.clear()
        await eventually_async(lambda: seen, "the ephemeral node is deleted", 60.0)
        assert 5.9 <= loop.time() - start <= 12.0
        server.heal("client")
        read, written = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(read, SessionExpired)
        assert isinstance(written, ConnectionLost)
        assert events == [(SessionEvent.DISCONNECTED, old), (SessionEvent.EXPIRED, 0)]
        with pytest.raises(NoNode):
            await tree.get("/e")
        assert events[2:] == [(SessionEvent.CONNECTED, tree.session_id)]
        assert tree.session_id not in (0, old)
        for each in (tree, other):
            await each.close()

    simulate(story)


def test_calls_made_while_the_session_is_lost_end_with_it_and_later_ones_do_not() -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree = await open_tree(server)
        results: list[object] = []

        def on_event(event: SessionEvent) -> None:
            if event is SessionEvent.EXPIRED:
                results.append(asyncio.ensure_future(tree.create("/new", ephemeral=True)))

        tree.listen(on_event)
        server.cut("client")
        await asyncio.sleep(5.0)
        waiting = [asyncio.ensure_future(tree.create(f"/old{n}")) for n in range(3)]
        await asyncio.sleep(5.0)
        assert not any(call.done() for call in waiting), "a write without a connection waits"
        server.heal("client")
        assert all(isinstance(error, SessionExpired) for error in await _errors(waiting))
        [created] = results
        assert isinstance(created, asyncio.Future)
        assert await created == "/new"
        assert await tree.children("/") == ["new"]
        await tree.close()

    simulate(story)


def test_a_call_that_is_repeated_at_the_moment_of_the_expiry_reaches_the_next_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree = await open_tree(server)
        expire, reads = Session._expire, []
        failures = 0

        async def read() -> list[str]:
            nonlocal failures
            while True:
                try:
                    return await tree.children("/")
                except SessionExpired:
                    failures += 1
                    assert failures < 10, "the loop gets no turn to tell of the expiry"

        def expire_beside_a_read(session: Session) -> None:
            reads.append(asyncio.ensure_future(read()))  # its first step comes before the listeners are told
            expire(session)

        monkeypatch.setattr(Session, "_expire", expire_beside_a_read)
        server.expire("client")
        await eventually_async(lambda: reads, "the session expires")
        assert await reads[0] == []
        assert failures == 1
        await tree.close()

    simulate(story)


def test_a_listener_that_fails_keeps_no_event_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree = await open_tree(server)
        events: list[SessionEvent] = []

        def fail(event: SessionEvent) -> None:
            raise OSError(errno.ENOSPC, "a planted fault")

        tree.listen(fail)
        tree.listen(events.append)
        server.expire("client")
        await eventually_async(lambda: SessionEvent.CONNECTED in events, "a new session")
        assert SessionEvent.EXPIRED in events
        await tree.close()

    simulate(story)
    assert "a listener failed at the event that the session is expired" in caplog.text


def test_a_session_survives_an_error_that_nobody_expects(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree = await open_tree(server)
        left = 2
        opened = server.open

        async def fail(client: str, listener: ConnectionListener) -> Connection:
            nonlocal left
            left -= 1
            if left >= 0:
                raise RuntimeError("a planted fault")
            return await opened(client, listener)

        monkeypatch.setattr(server, "open", fail)
        server.lose_connection("client")
        await asyncio.wait_for(tree.children("/"), 30.0)
        assert left < 0
        await tree.close()

    simulate(story)
    assert "another one follows" in caplog.text


def test_the_log_tells_again_and_again_that_there_is_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree = await open_tree(server)
        server.stop()
        await asyncio.sleep(45.0)
        server.start()
        await tree.close()

    simulate(story)
    found = [record for record in caplog.records if "there is no connection to ZooKeeper" in record.message]
    assert 3 <= len(found) <= 4


async def _errors(calls: list[asyncio.Future[str]]) -> list[object]:
    return list(await asyncio.gather(*calls, return_exceptions=True))


def test_an_outage_shorter_than_the_session_loses_no_session_and_no_watch() -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree, other = await open_tree(server), await open_tree(server, "other")
        session = tree.session_id
        seen: list[WatchEvent] = []
        await tree.create("/e", ephemeral=True)
        await tree.exists("/a", seen.append)
        for number in range(10):
            server.stop()
            await asyncio.sleep(1.0)
            server.start()
            assert (await tree.get("/e"))[1].ephemeral_owner == session
            await other.exists("/") if number else None
        assert seen == []
        await other.create("/a")
        await eventually_async(lambda: seen, "the watch is still set")
        for each in (tree, other):
            await each.close()

    simulate(story)


def test_a_change_while_disconnected_is_told_after_the_reconnect_and_before_connected() -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree, other = await open_tree(server), await open_tree(server, "other")
        for path in ("/data", "/gone", "/parent", "/still"):
            await tree.create(path)
        told: list[object] = []
        tree.listen(told.append)
        for path in ("/data", "/gone", "/still"):
            await tree.get(path, told.append)
        for path in ("/parent", "/gone", "/still"):
            await tree.children(path, told.append)
        await tree.exists("/made", told.append)
        server.cut("client")
        await other.set("/data", b"x")
        await other.delete("/gone")
        await other.create("/parent/child")
        await other.create("/made")
        server.lose_connection("client")
        server.heal("client")
        await eventually_async(lambda: SessionEvent.CONNECTED in told, "it is connected again")
        assert told[0] is SessionEvent.DISCONNECTED
        assert told[-1] is SessionEvent.CONNECTED
        events = sorted(
            (event.type.value, event.path) for event in told[1:-1] if isinstance(event, WatchEvent)
        )
        assert events == [
            ("changed", "/data"),
            ("children", "/parent"),
            ("created", "/made"),
            ("deleted", "/gone"),
        ]
        await other.set("/still", b"")
        await eventually_async(lambda: told[-1] != SessionEvent.CONNECTED, "the other watch is set again")
        for each in (tree, other):
            await each.close()

    simulate(story)


@pytest.mark.parametrize("seed", range(scale(10, 200)))
def test_watches_keep_a_copy_up_to_date_through_all_faults(seed: int) -> None:
    async def story(server: SimulatedZooKeeper) -> list[tuple[int, int, list[Operation]]]:
        history: list[tuple[int, int, list[Operation]]] = []
        server.on_commit = lambda *change: history.append(change)
        rng = random.Random(seed)
        writer, reader = await open_tree(server, "writer"), await open_tree(server, "reader")
        await writer.create("/q")
        follower = Follower(reader)
        follower.look()
        server.loss = 0.02
        for _ in range(60):
            path = f"/q/{rng.randrange(5)}"
            try:
                match rng.randrange(3):
                    case 0:
                        await writer.create(path, b"%d" % rng.randrange(100), ephemeral=rng.random() < 0.3)
                    case 1:
                        await writer.set(path, b"%d" % rng.randrange(100))
                    case 2:
                        await writer.delete(path)
            except TreeError:
                pass  # whatever was made, the copy has to show it
            fault = rng.randrange(12)
            if fault < 3:
                server.lose_connection("reader" if fault else "writer")
            elif fault == 3:
                server.expire("reader")
            elif fault == 4:
                server.cut("reader", to_server=rng.random() < 0.5)
                await asyncio.sleep(rng.uniform(0.0, 8.0))
                server.heal("reader")
            await asyncio.sleep(rng.uniform(0.0, 0.05))
        server.loss = 0.0

        def truth() -> dict[str, bytes]:
            return {name: server.tree.get(f"/q/{name}")[0] for name in server.tree.children("/q")}

        await eventually_async(lambda: follower.copy == truth(), f"{follower.copy} becomes {truth()}", 30.0)
        await writer.close()
        await reader.close()
        return history

    first = simulate(story, seed)
    assert simulate(story, seed) == first, "a seed replays the same changes"
    assert [zxid for zxid, _, _ in first] == sorted({zxid for zxid, _, _ in first})


def test_a_server_that_is_down_is_said_so() -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        server.stop()
        settings = ZooKeeperSettings(connect_timeout=3.0)
        with pytest.raises(TreeUnavailable, match=r"no ZooKeeper answered .* within 3 s .*is down"):
            await SimulatedTree.open(server, "client", rng=random.Random(1), settings=settings)

    simulate(story)
