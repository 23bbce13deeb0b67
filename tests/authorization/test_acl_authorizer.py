"""The authorizer of a broker follows the rules in the tree, whoever changes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from tests.support.virtual_loop import VirtualLoop
from tidelog import Admin
from tidelog.config.values import ConfigError
from tidelog.errors import InvalidRequest, KafkaError
from tidelog.metadata.async_tree import AsyncTree
from tidelog.metadata.nodes import BadNode
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.metadata.tree import NoNode, Operation, Stat
from tidelog.metadata.zookeeper.settings import ZooKeeperSettings
from tidelog.network.request import client_address
from tidelog.security.acl import AclBinding, AclBindingFilter, AclPermissionType, PatternType
from tidelog.security.acl_authorizer import AclAuthorizer, parse_super_users
from tidelog.security.acl_store import AclStore
from tidelog.security.authorizer import AuthorizableRequestContext, make_authorizer
from tidelog.security.operations import AclOperation, AclResourceType, Action
from tidelog.server.run import StartFailed
from tidelog.testing import Broker

READ = AclOperation.READ
TOPIC = AclResourceType.TOPIC
PREFIXED = PatternType.PREFIXED
ORDERS = "/kafka-acl/Topic/orders"


class Context(NamedTuple):
    principal: str = "User:alice"
    client_address: str = "127.0.0.1"
    listener: str = "PLAINTEXT"
    client_id: str | None = None


ALICE = Context()


class World:
    def __init__(self) -> None:
        self.zookeeper = SimulatedZooKeeper(asyncio.get_running_loop(), random.Random(1))

    async def authorizer(self, client: str, **settings: str) -> AclAuthorizer:
        tree = await SimulatedTree.open(
            self.zookeeper,
            client,
            rng=random.Random(client),
            settings=ZooKeeperSettings(session_timeout=6.0),
        )
        made = AclAuthorizer()
        made.configure({name.replace("_", "."): value for name, value in settings.items()})
        await made.start(tree)
        return made

    def has(self, path: str) -> bool:
        try:
            self.zookeeper.tree.get(path)
        except NoNode:
            return False
        return True

    def node(self, path: str) -> tuple[bytes, int]:
        data, stat = self.zookeeper.tree.get(path)
        return data, stat.version


def run(story: Callable[[World], Coroutine[object, object, None]]) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        await story(World())

    try:
        loop.run_until_complete(main())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def rule(
    name: str = "orders",
    principal: str = "User:alice",
    operation: AclOperation = READ,
    pattern: PatternType = PatternType.LITERAL,
) -> AclBinding:
    return AclBinding(TOPIC, name, principal, operation, pattern_type=pattern)


def may_read(authorizer: AclAuthorizer, context: Context = ALICE, name: str = "orders") -> bool:
    (allowed,) = authorizer.authorize(context, [Action(READ, TOPIC, name)])
    return allowed


async def settle(seconds: float = 1.0) -> None:
    """Let simulated time pass (VirtualLoop): a test does not wait."""
    await asyncio.sleep(seconds)


@pytest.mark.parametrize("call", ["prepare", "read_all"])
def test_a_session_that_expires_during_the_start_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A broker that starts beside a busy ZooKeeper would end otherwise."""
    original = getattr(AclStore, call)

    async def story(world: World) -> None:
        first = await world.authorizer("a")
        assert await first.create_acls(ALICE, [rule()]) == [None]
        expired = False

        async def slow(*args: object) -> object:
            nonlocal expired
            if not expired:
                expired = True
                world.zookeeper.expire("b")
            return await original(*args)

        monkeypatch.setattr(AclStore, call, slow)
        second = await world.authorizer("b")
        assert expired
        assert may_read(second)
        assert await first.create_acls(ALICE, [rule("payments")]) == [None]
        await settle()
        assert may_read(second, name="payments")

    run(story)


def test_the_work_for_a_rule_does_not_grow_with_the_rules_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications stay for a quarter of an hour: each change read all of them."""
    nodes = steps = 0
    get_all, multi = SimulatedTree.get_all, SimulatedTree.multi

    async def counted_get_all(tree: SimulatedTree, paths: Iterable[str]) -> dict[str, tuple[bytes, Stat]]:
        nonlocal nodes
        wanted = list(paths)
        nodes += len(wanted)
        return await get_all(tree, wanted)

    async def counted_multi(tree: SimulatedTree, operations: Sequence[Operation]) -> list[object]:
        nonlocal steps
        steps += 1
        return await multi(tree, operations)

    monkeypatch.setattr(SimulatedTree, "get_all", counted_get_all)
    monkeypatch.setattr(SimulatedTree, "multi", counted_multi)

    async def story(world: World) -> None:
        nonlocal nodes, steps
        here, there = await world.authorizer("a"), await world.authorizer("b")
        rules = [rule(f"t{number}", pattern=PatternType(3 + number % 2)) for number in range(1_000)]
        assert await here.create_acls(ALICE, rules) == [None] * len(rules)
        await settle()
        assert steps <= 25
        assert may_read(there, name="t0")
        assert may_read(there, name="t999-and-more")
        nodes = steps = 0
        assert await here.create_acls(ALICE, [rule("one-more")]) == [None]
        await settle()
        assert may_read(there, name="one-more")
        assert nodes < 500

    run(story)


def test_one_rule_that_cannot_be_stored_does_not_keep_others_out() -> None:
    async def story(world: World) -> None:
        authorizer = await world.authorizer("a")
        errors = await authorizer.create_acls(ALICE, [rule("a"), rule("b/c"), rule("d")])
        assert [type(error) for error in errors] == [type(None), InvalidRequest, type(None)]
        assert may_read(authorizer, name="a")
        assert may_read(authorizer, name="d")

    run(story)


def test_rules_that_another_broker_changes_at_the_same_time_are_all_kept() -> None:
    async def story(world: World) -> None:
        here, there = await world.authorizer("a"), await world.authorizer("b")
        names = [f"t{number}" for number in range(60)]
        await asyncio.gather(
            here.create_acls(ALICE, [rule(name) for name in names]),
            there.create_acls(ALICE, [rule(name, "User:bob") for name in reversed(names)]),
        )
        await settle()
        for authorizer in (here, there):
            assert all(may_read(authorizer, name=name) for name in names)
            assert all(may_read(authorizer, Context("User:bob"), name) for name in names)

    run(story)


def test_rules_are_in_the_tree_as_kafka_writes_them() -> None:
    async def story(world: World) -> None:
        authorizer = await world.authorizer("a")
        rules = [rule(), rule(operation=AclOperation.DESCRIBE_CONFIGS), rule("ord", pattern=PREFIXED)]
        assert await authorizer.create_acls(ALICE, rules) == [None] * 3
        assert world.node(ORDERS) == (
            b'{"acls":[{"principal":"User:alice","permissionType":"Allow","host":"*","operation":"Read"},'
            b'{"principal":"User:alice","permissionType":"Allow","host":"*","operation":"DescribeConfigs"}],'
            b'"version":1}',
            0,
        )
        assert world.node("/kafka-acl-changes/acl_changes_0000000000")[0] == b"TOPIC:orders"
        assert world.node("/kafka-acl-extended/prefixed/Topic/ord")[0].startswith(b'{"acls":[')
        assert world.node("/kafka-acl-extended-changes/acl_changes_0000000000")[0] == (
            b'{"version":1,"resourceType":"TOPIC","name":"ord","patternType":"PREFIXED"}'
        )
        for kind in ("Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User"):
            assert world.has(f"/kafka-acl/{kind}")
            assert world.has(f"/kafka-acl-extended/prefixed/{kind}")

    run(story)


def test_the_last_rule_takes_its_node_along() -> None:
    async def story(world: World) -> None:
        authorizer = await world.authorizer("a")
        await authorizer.create_acls(ALICE, [rule()])
        (removed,) = await authorizer.delete_acls(ALICE, [AclBindingFilter()])
        assert removed == [(rule(), None)]
        assert not world.has(ORDERS)
        assert not may_read(authorizer)

    run(story)


def test_a_change_counts_at_once_here_and_soon_on_other_brokers() -> None:
    async def story(world: World) -> None:
        here, there = await world.authorizer("a"), await world.authorizer("b")
        await here.create_acls(ALICE, [rule()])
        assert may_read(here)
        await settle()
        assert may_read(there)
        await there.delete_acls(ALICE, [AclBindingFilter(name="orders")])
        assert not may_read(there)
        await settle()
        assert not may_read(here)

    run(story)


def test_concurrent_changes_of_one_resource_are_all_kept() -> None:
    async def story(world: World) -> None:
        brokers = [await world.authorizer(name) for name in "abc"]
        users = [f"User:u{number}" for number in range(30)]
        await asyncio.gather(
            *(
                brokers[at % 3].create_acls(ALICE, [rule(principal=user), rule("o", user, pattern=PREFIXED)])
                for at, user in enumerate(users)
            )
        )
        await settle()
        for broker in brokers:
            rules = [found for found in broker.acls(AclBindingFilter(name="orders")) if found is not None]
            assert {found.principal for found in rules} == set(users)
            assert broker.acl_count == 60

    run(story)


def test_rules_are_read_again_after_a_lost_session() -> None:
    async def story(world: World) -> None:
        here, there = await world.authorizer("a"), await world.authorizer("b")
        await here.create_acls(ALICE, [rule()])
        await settle()
        world.zookeeper.cut("b")
        await here.delete_acls(ALICE, [AclBindingFilter()])
        for notice in world.zookeeper.tree.children("/kafka-acl-changes"):
            await here._store._tree.delete(f"/kafka-acl-changes/{notice}")  # type: ignore[union-attr]
        await settle(20)  # longer than the session
        world.zookeeper.heal("b")
        await settle(20)
        assert not may_read(there)

    run(story)


def test_a_change_whose_answer_is_lost_is_made_once() -> None:
    async def story(world: World) -> None:
        authorizer = await world.authorizer("a")
        for number in range(20):
            changing = asyncio.create_task(authorizer.create_acls(ALICE, [rule(principal=f"User:u{number}")]))
            await asyncio.sleep(0.001 * number)
            world.zookeeper.lose_connection("a")
            assert await changing == [None]
        assert authorizer.acl_count == 20

    run(story)


def test_an_unreadable_rule_stops_the_start_and_not_a_running_broker() -> None:
    async def story(world: World) -> None:
        authorizer = await world.authorizer("a")
        await authorizer.create_acls(ALICE, [rule()])
        tree = authorizer._store._tree  # type: ignore[union-attr]
        await tree.set(ORDERS, b"nonsense")
        await tree.create("/kafka-acl-changes/acl_changes_", b"TOPIC:orders", sequential=True)
        await settle()
        assert may_read(authorizer)
        with pytest.raises(BadNode, match="orders"):
            await world.authorizer("b")

    run(story)


def test_a_change_times_out_while_the_tree_is_away() -> None:
    async def story(world: World) -> None:
        authorizer = await world.authorizer("a", request_timeout_ms="2000")
        world.zookeeper.stop()
        (error,) = await authorizer.create_acls(ALICE, [rule()])
        assert error is not None
        assert error.code == 7

    run(story)


def test_super_users_and_resources_without_rules() -> None:
    async def story(world: World) -> None:
        authorizer = await world.authorizer("a", super_users="User:root; User:CN=broker,O=Tide")
        assert may_read(authorizer, Context("User:root"))
        assert may_read(authorizer, Context("User:CN=broker,O=Tide"))
        assert not may_read(authorizer)
        generous = await world.authorizer("b", allow_everyone_if_no_acl_found="true")
        assert may_read(generous)
        await generous.create_acls(ALICE, [rule(principal="User:bob")])
        assert not may_read(generous)
        assert may_read(generous, Context("User:bob"))

    run(story)


def test_super_users_need_a_type() -> None:
    assert parse_super_users("") == frozenset()
    with pytest.raises(ConfigError, match="write User:admin"):
        parse_super_users("User:a;admin")


def test_a_denied_user_is_denied_although_all_are_allowed() -> None:
    async def story(world: World) -> None:
        authorizer = await world.authorizer("a")
        denied = AclBinding(TOPIC, "orders", "User:alice", READ, AclPermissionType.DENY)
        await authorizer.create_acls(ALICE, [rule(principal="User:*"), denied])
        assert not may_read(authorizer)
        assert may_read(authorizer, Context("User:bob"))

    run(story)


class Generous:
    """An authorizer of a user's own that allows everything."""

    generation = None
    acl_count = 0

    def configure(self, settings: Mapping[str, str]) -> None:
        pass

    async def start(self, tree: AsyncTree) -> None:
        pass

    def authorize(self, context: AuthorizableRequestContext, actions: Sequence[Action]) -> list[bool]:
        return [True for _ in actions]

    def authorize_by_resource_type(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource_type: AclResourceType
    ) -> bool:
        return True

    async def create_acls(
        self, context: AuthorizableRequestContext, bindings: Sequence[AclBinding]
    ) -> list[KafkaError | None]:
        return [InvalidRequest("nobody needs rules here") for _ in bindings]

    async def delete_acls(
        self, context: AuthorizableRequestContext, filters: Sequence[AclBindingFilter]
    ) -> list[list[tuple[AclBinding, KafkaError | None]]]:
        return [[] for _ in filters]

    def acls(self, wanted: AclBindingFilter) -> Iterator[AclBinding]:
        return iter(())

    async def close(self) -> None:
        pass


def test_a_class_of_ones_own_is_named_by_its_module() -> None:
    assert make_authorizer("") is None
    assert isinstance(make_authorizer("kafka.security.authorizer.AclAuthorizer"), AclAuthorizer)
    assert isinstance(make_authorizer(f"{__name__}.Generous"), Generous)
    for wrong in ("nothing", "no.such.Class", f"{__name__}.Missing", f"{__name__}.Context"):
        with pytest.raises(ConfigError, match=r"authorizer\.class\.name"):
            make_authorizer(wrong)


def test_a_broker_asks_a_class_of_ones_own() -> None:
    with Broker({"authorizer.class.name": f"{__name__}.Generous"}) as broker:
        broker.create_topic("t")
        broker.produce("t", "one", "two")
        assert [record.value for record in broker.records("t")] == [b"one", b"two"]
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin, pytest.raises(InvalidRequest):
            admin.create_acls([rule()])


def test_a_broker_does_not_start_without_its_authorizer() -> None:
    with pytest.raises(StartFailed, match=r"authorizer\.class\.name"):
        Broker({"authorizer.class.name": "no.such.Class"}).start()
    settings = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "admin"}
    with pytest.raises(StartFailed, match=r"super\.users"):
        Broker(settings).start()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1:9", "10.0.0.1"),
        ("[::1]:9", "0:0:0:0:0:0:0:1"),
        ("[fe80::1%eth0]:9", "fe80:0:0:0:0:0:0:1"),
        ("[::ffff:10.0.0.1]:9", "10.0.0.1"),
    ],
)
def test_addresses_are_written_as_java_does(peer: str, address: str) -> None:
    assert client_address(peer) == address
