"""The client of a real ZooKeeper keeps its promises through cut connections and expired sessions."""

from __future__ import annotations

import asyncio
import random
import signal
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.kafka.certificates import make_certificates
from tests.metadata.follower import Follower
from tests.metadata.trees import run
from tests.support.ports import free_port
from tests.support.scale import scale
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import eventually_async, patience
from tests.support.zookeeper import tls_settings, zookeeper_server
from tidelog.metadata.async_tree import ConnectionLost, SessionEvent, SessionExpired, ensure_path
from tidelog.metadata.tree import (
    Create,
    DataTooLarge,
    NoAuth,
    NoNode,
    Operation,
    SetData,
    TreeUnavailable,
    WatchEvent,
)
from tidelog.metadata.zookeeper import (
    AuthenticationFailed,
    ZooKeeperSettings,
    ZooKeeperTree,
    close_session,
    secure_acl,
)
from tidelog.network.loop import BrokerLoop
from tidelog.server.zookeeper_process import ZooKeeperProcess

T = TypeVar("T")


def on_loop(story: Callable[[], Awaitable[T]]) -> T:
    return run(BrokerLoop, story)


async def connect(
    address: str, *, session_timeout: float = 20.0, settings: ZooKeeperSettings | None = None
) -> ZooKeeperTree:
    chosen = settings or ZooKeeperSettings(session_timeout=session_timeout)
    return await ZooKeeperTree.connect(address, chosen, rng=random.Random(1))


@pytest.fixture
def root() -> str:
    """A chroot of the test's own."""
    return f"/{uuid.uuid4().hex}"


def test_no_watch_is_lost_when_the_connection_is_cut_again_and_again(
    zookeeper: ZooKeeperProcess, root: str
) -> None:
    async def story() -> None:
        rng = random.Random(5)
        async with TcpProxy(zookeeper.host, zookeeper.port) as proxy:
            writer = await connect(zookeeper.address + root)
            reader = await connect(proxy.address + root)
            session = reader.session_id
            await writer.create("/q")
            follower = Follower(reader)
            follower.look()
            truth: dict[str, bytes] = {}
            for number in range(scale(40, 200)):
                name = str(rng.randrange(10))
                if name in truth and rng.random() < 0.4:
                    del truth[name]
                    await writer.delete(f"/q/{name}")
                else:
                    path, data = f"/q/{name}", b"%d" % number
                    await (writer.set(path, data) if name in truth else writer.create(path, data))
                    truth[name] = data
                if rng.random() < 0.5:
                    proxy.cut()
                if rng.random() < 0.3:
                    await eventually_async(lambda: follower.copy == truth, f"change {number} is seen")
            await eventually_async(lambda: follower.copy == truth, "the last change is seen")
            assert proxy.accepted > 10
            assert reader.session_id == session
            await writer.close()
            await reader.close()

    on_loop(story)


def test_thousands_of_watches_are_set_again_in_several_requests(
    zookeeper: ZooKeeperProcess, root: str
) -> None:
    async def story() -> None:
        async with TcpProxy(zookeeper.host, zookeeper.port) as proxy:
            writer = await connect(zookeeper.address + root)
            reader = await connect(proxy.address + root)
            names = [f"/{'n' * 200}{number}" for number in range(2000)]
            await asyncio.gather(*(writer.create(name) for name in names[:1000]))
            seen: set[str] = set()

            def watch(event: WatchEvent) -> None:
                seen.add(event.path)

            await asyncio.gather(*(reader.exists(name, watch) for name in names))
            events: list[SessionEvent] = []
            reader.listen(events.append)
            proxy.cut()
            await eventually_async(lambda: SessionEvent.CONNECTED in events, "it is connected again")
            assert seen == set()
            await asyncio.gather(*(writer.set(name, b"x") for name in names[:1000]))
            await asyncio.gather(*(writer.create(name) for name in names[1000:]))
            await eventually_async(lambda: len(seen) == 2000, "every watch is called")
            await writer.close()
            await reader.close()

    on_loop(story)


def test_a_session_that_expired_is_told_of_and_replaced(zookeeper: ZooKeeperProcess, root: str) -> None:
    async def story() -> None:
        async with TcpProxy(zookeeper.host, zookeeper.port) as proxy:
            other = await connect(zookeeper.address + root)
            tree = await connect(proxy.address + root, session_timeout=2.0)
            assert tree.session_timeout == 2.0
            for _ in range(scale(2, 10)):
                await tree.create("/e", ephemeral=True)
                old = tree.session_id
                events: list[SessionEvent] = []
                tree.listen(events.append)
                seen: list[WatchEvent] = []
                await tree.exists("/w", seen.append)
                proxy.hold()
                read = asyncio.ensure_future(tree.get("/e"))
                write = asyncio.ensure_future(tree.set("/e", b"x"))
                gone = asyncio.Event()
                await other.exists("/e", lambda event: gone.set())  # noqa: B023
                await gone.wait()
                proxy.cut()
                proxy.release()
                with pytest.raises(SessionExpired):
                    await read
                with pytest.raises(ConnectionLost):
                    await write
                assert await tree.exists("/e") is None
                assert events == [SessionEvent.DISCONNECTED, SessionEvent.EXPIRED, SessionEvent.CONNECTED]
                assert tree.session_id not in (0, old)
                await other.create("/w")
                await other.delete("/w")
                assert seen == [], "watches end with their session"
            await tree.close()
            await other.close()

    on_loop(story)


def test_the_outcome_of_a_cut_write_is_read_from_the_tree(zookeeper: ZooKeeperProcess, root: str) -> None:
    async def story() -> None:
        async with TcpProxy(zookeeper.host, zookeeper.port) as proxy:
            tree = await connect(proxy.address + root)
            await tree.create("/a", b"0")
            proxy.answers_pass = False
            write = asyncio.ensure_future(tree.set("/a", b"1"))
            read = asyncio.ensure_future(tree.get("/a"))
            await eventually_async(lambda: proxy.swallowed, "ZooKeeper has answered")
            proxy.answers_pass = True
            proxy.cut()
            with pytest.raises(ConnectionLost, match="the outcome of the change is not known"):
                await write
            assert (await read)[0] == b"1", "the read waited for the next connection"
            proxy.hold()
            write = asyncio.ensure_future(tree.set("/a", b"2"))
            await eventually_async(lambda: proxy.held, "the request is under way")
            proxy.cut()
            proxy.release()
            with pytest.raises(ConnectionLost):
                await write
            assert (await tree.get("/a"))[0] == b"1"
            await tree.close()

    on_loop(story)


def test_a_write_without_a_connection_waits_for_it(zookeeper: ZooKeeperProcess, root: str) -> None:
    async def story() -> None:
        async with TcpProxy(zookeeper.host, zookeeper.port) as proxy:
            tree = await connect(proxy.address + root)
            events: list[SessionEvent] = []
            tree.listen(events.append)
            proxy.hold()
            proxy.cut()
            await eventually_async(lambda: events, "the loss is noticed")
            assert events == [SessionEvent.DISCONNECTED]
            writes = [asyncio.ensure_future(tree.create("/a-", sequential=True)) for _ in range(3)]
            proxy.release()
            assert await asyncio.gather(*writes) == [f"/a-{number:010d}" for number in range(3)]
            assert events == [SessionEvent.DISCONNECTED, SessionEvent.CONNECTED]
            await tree.close()

    on_loop(story)


def test_another_process_can_close_the_session(zookeeper: ZooKeeperProcess, root: str) -> None:
    async def story() -> None:
        other = await connect(zookeeper.address + root)
        async with TcpProxy(zookeeper.host, zookeeper.port) as proxy:
            tree = await connect(proxy.address + root)
            await tree.create("/e", ephemeral=True)
            session, password = tree.session_id, tree.session_password
            proxy.hold()
            hosts = f"127.0.0.1:{free_port()},{zookeeper.address}/chroot"
            rng = random.Random(1)
            assert not await close_session(hosts, session, b"x" * 16, rng=rng), "the password is wrong"
            assert await other.exists("/e") is not None
            assert await close_session(hosts, session, password, rng=rng)
            assert await other.exists("/e") is None
            assert not await close_session(hosts, session, password, rng=rng)
            events: list[SessionEvent] = []
            tree.listen(events.append)
            proxy.cut()
            proxy.release()
            await eventually_async(lambda: SessionEvent.EXPIRED in events, "the owner learns of it")
            await tree.close()
        await other.close()
        with pytest.raises(TreeUnavailable, match="no ZooKeeper answered"):
            await close_session(f"127.0.0.1:{free_port()}", session, password, rng=rng, timeout=0.3)

    on_loop(story)


def test_digest_credentials_and_acls_protect_nodes(zookeeper: ZooKeeperProcess, root: str) -> None:
    alice = ZooKeeperSettings(auth=(("digest", b"alice:secret"),), acl=secure_acl)

    async def story() -> None:
        async with TcpProxy(zookeeper.host, zookeeper.port) as proxy:
            tree = await connect(proxy.address + root, settings=alice)
            stranger = await connect(zookeeper.address + root)
            await tree.create("/a", b"public")
            await ensure_path(tree, "/config/users")
            await tree.create("/config/users/bob", b"credentials")
            await tree.create("/consumers")
            assert (await stranger.get("/a"))[0] == b"public"
            for call in (
                stranger.get("/config/users/bob"),
                stranger.set("/a", b""),
                stranger.create("/a/b"),
                stranger.multi([SetData("/a", b"")]),
                stranger.delete("/config/users/bob"),
            ):
                with pytest.raises(NoAuth, match="ACL"):
                    await call
            await stranger.create("/consumers/group")
            proxy.cut()
            assert (await tree.get("/config/users/bob"))[0] == b"credentials", "it authenticates again"
            await tree.close()
            await stranger.close()

    on_loop(story)


def test_credentials_that_zookeeper_refuses_are_an_error(zookeeper: ZooKeeperProcess) -> None:
    async def story() -> None:
        with pytest.raises(AuthenticationFailed):
            await connect(zookeeper.address, settings=ZooKeeperSettings(auth=(("nonsense", b"x"),)))

    on_loop(story)


def test_a_connection_over_tls(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates", "secret")
    port = free_port()
    server = zookeeper_server(
        tmp_path / "data", tls_settings(port, certificates.server, certificates.authority)
    )
    trusting = ssl.create_default_context(cafile=str(certificates.authority))
    trusting.load_cert_chain(certificates.client)
    stranger = ssl.create_default_context(cafile=str(certificates.stranger))

    async def story() -> None:
        address = f"127.0.0.1:{port}"
        tree = await connect(f"{address}/tls", settings=ZooKeeperSettings(tls=trusting))
        await tree.create("/a", b"x" * 1_000_000)
        assert len((await tree.get("/a"))[0]) == 1_000_000
        paths = [f"/{number}" for number in range(500)]
        await asyncio.gather(*(tree.create(path) for path in paths))
        assert len(await tree.get_all(paths)) == 500
        assert await close_session(
            address, tree.session_id, tree.session_password, rng=random.Random(1), tls=trusting
        )
        await tree.close()
        with pytest.raises(TreeUnavailable, match="certificate verify failed"):
            await connect(address, settings=ZooKeeperSettings(tls=stranger, connect_timeout=3.0))

    with server:
        on_loop(story)


def test_a_missing_chroot_is_made_and_nothing_outside_is_seen(
    zookeeper: ZooKeeperProcess, root: str
) -> None:
    async def story() -> None:
        inside, outside = await connect(f"{zookeeper.address}{root}/x/"), await connect(zookeeper.address)
        seen: list[WatchEvent] = []
        assert await inside.exists("/a", seen.append) is None
        assert await inside.children("/", seen.append) == []
        assert await inside.create("/a", b"1") == "/a"
        assert await inside.multi([Create("/s-", sequential=True), SetData("/", b"root")]) == [
            "/s-0000000001",
            await inside.exists("/"),
        ]
        assert {event.path for event in seen} == {"/a", "/"}
        assert await outside.children(f"{root}/x") == ["a", "s-0000000001"]
        assert (await outside.get(f"{root}/x"))[0] == b"root"
        assert await inside.get_all(["/a"]) == await inside.get_all(["/a", "/none"])
        with pytest.raises(NoNode) as missing:
            await inside.get(f"{root}/x")
        assert missing.value.path == f"{root}/x"
        await inside.close()
        await outside.close()

    on_loop(story)


def test_one_of_several_hosts_is_enough_and_a_restart_keeps_the_session(tmp_path: Path) -> None:
    with zookeeper_server(tmp_path) as server:

        async def story() -> None:
            hosts = f"127.0.0.1:{free_port()},{server.address},127.0.0.1:{free_port()}"
            tree = await connect(hosts)
            await tree.create("/e", ephemeral=True)
            session = tree.session_id
            seen: list[WatchEvent] = []
            await tree.get("/e", seen.append)
            server.kill()
            read = asyncio.ensure_future(tree.get("/e"))
            await asyncio.get_running_loop().run_in_executor(None, server.__enter__)
            assert (await read)[1].ephemeral_owner == session
            await tree.set("/e", b"x")
            assert seen == [WatchEvent(seen[0].type, "/e")]
            await tree.close()

        on_loop(story)


def test_a_server_that_hangs_is_left_before_the_session_ends(tmp_path: Path) -> None:
    with zookeeper_server(tmp_path) as server:

        async def story() -> None:
            tree = await connect(server.address, session_timeout=6.0)
            session, start = tree.session_id, time.monotonic()
            events: list[SessionEvent] = []
            tree.listen(events.append)
            server.signal(signal.SIGSTOP)
            await eventually_async(lambda: events, "the silence is noticed")
            assert time.monotonic() - start < 6.0
            server.signal(signal.SIGCONT)
            await tree.exists("/")
            assert tree.session_id == session
            await tree.close()

        on_loop(story)


def test_an_idle_session_stays_alive(zookeeper: ZooKeeperProcess) -> None:
    seconds = min(patience(1.5), 6.0)  # a busy machine needs longer for a ping

    async def story() -> None:
        async with TcpProxy(zookeeper.host, zookeeper.port) as proxy:
            tree = await connect(proxy.address, session_timeout=seconds)
            session, before = tree.session_id, proxy.answered
            events: list[SessionEvent] = []
            tree.listen(events.append)
            await eventually_async(lambda: proxy.answered >= before + 5 * 20, "5 pings are answered", 60)
            assert await tree.exists("/") is not None
            assert (tree.session_id, events) == (session, [])
            await tree.close()

    on_loop(story)


def test_reading_thousands_of_nodes_costs_little(zookeeper: ZooKeeperProcess, root: str) -> None:
    async def story() -> None:
        tree = await connect(zookeeper.address + root)
        paths = [f"/{number}" for number in range(5000)]
        for start in range(0, 5000, 500):
            operations: list[Operation] = [Create(path, b"x" * 100) for path in paths[start : start + 500]]
            await tree.multi(operations)
        before = time.process_time()
        found = await tree.get_all(paths)
        spent = time.process_time() - before
        assert len(found) == 5000
        assert spent < 1.0, "1,000 reads take less than 0.2 s of CPU"
        await tree.close()

    on_loop(story)


def test_data_has_a_limit_and_answers_have_none(zookeeper: ZooKeeperProcess, root: str) -> None:
    async def story() -> None:
        tree = await connect(zookeeper.address + root)
        session = tree.session_id
        with pytest.raises(DataTooLarge, match=r"/a: the request has 1,048,6\d\d bytes.*jute.maxbuffer"):
            await tree.create("/a", b"x" * (1 << 20))
        operations: list[Operation] = [Create(f"/{number}", b"x" * 1000) for number in range(1100)]
        with pytest.raises(DataTooLarge):
            await tree.multi(operations)
        largest = (1 << 20) - 100
        await tree.create("/a", b"x" * largest)
        assert len((await tree.get("/a"))[0]) == largest
        names = [f"{number:0100d}" for number in range(15000)]
        await tree.create("/n")
        for start in range(0, len(names), 1000):
            await tree.multi([Create(f"/n/{name}") for name in names[start : start + 1000]])
        assert await tree.children("/n") == names, "1.5 MB in one answer"
        assert tree.session_id == session
        await tree.close()

    on_loop(story)


def test_nobody_at_the_address_is_said_so() -> None:
    async def story() -> None:
        settings = ZooKeeperSettings(connect_timeout=0.5)
        with pytest.raises(TreeUnavailable, match=r"no ZooKeeper answered at 127.0.0.1:1 within 0.5 s \("):
            await connect("127.0.0.1:1", settings=settings)

    on_loop(story)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\2ab", b""])
def test_a_server_that_is_no_zookeeper_is_said_so(answer: bytes) -> None:
    async def story() -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TreeUnavailable, match="no ZooKeeper"):
            await connect(f"127.0.0.1:{port}", settings=ZooKeeperSettings(connect_timeout=0.3))
        server.close()

    on_loop(story)


def test_each_request_is_measured(zookeeper: ZooKeeperProcess, root: str) -> None:
    async def story() -> None:
        tree = await connect(zookeeper.address + root)
        seconds: list[float] = []
        tree.measure(seconds.append)
        await tree.create("/a")
        await tree.get("/a")
        assert len(seconds) == 2
        assert all(0 <= each < 20 for each in seconds)
        await tree.close()

    on_loop(story)
