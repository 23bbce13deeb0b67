"""Answers that list everything there is: others have a turn between two entries, however many there are.

A slice is one step here, so that the turns of the loop are counted, not timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import pytest

from tests.faults.faulty_disk import InProcess
from tests.faults.test_large_arrays import prepare
from tests.support.hostile import request_with
from tests.support.raw import RawConnection
from tidelog import slices
from tidelog.clients.connection import request_frame
from tidelog.network.loop import DirectSelector
from tidelog.protocol.api import API, ApiKey
from tidelog.protocol.message import Message
from tidelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from tidelog.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from tidelog.protocol.messages.create_acls import CreateAclsRequest
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from tidelog.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tidelog.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tidelog.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest
from tidelog.protocol.schema import Struct
from tidelog.security.acl_authorizer import AclAuthorizer
from tidelog.security.authorizer import AuthorizableRequestContext
from tidelog.security.operations import AclOperation, AclResourceType, Action
from tidelog.server.apis import served_apis
from tidelog.server.apis.authorization import NAMES_PER_STEP

S = TypeVar("S", bound=Struct)
MANY = 200
SOME = 20
ANY = 1
ALLOW = 3


class Turns:
    """How often the loop has looked at its sockets."""

    def __init__(self, selector: DirectSelector) -> None:
        self.count = 0
        self._poll = selector._poll
        selector._poll = self._counted  # type: ignore[assignment]

    def _counted(self, timeout: float | None, events: int) -> list[tuple[int, int]]:
        self.count += 1
        return self._poll(timeout, events)


class Watched(AclAuthorizer):
    """Remembers how many decisions the longest call had."""

    made: list[Watched]
    longest = 0

    def authorize(self, context: AuthorizableRequestContext, actions: Sequence[Action]) -> list[bool]:
        self.longest = max(self.longest, len(actions))
        return super().authorize(context, actions)

    def configure(self, settings: Mapping[str, str]) -> None:
        super().configure(settings)
        self.made.append(self)


class Fixture:
    def __init__(self, running: InProcess, authorizer: Watched) -> None:
        assert running.loop is not None
        self.authorizer = authorizer
        self.turns = Turns(running.loop.direct)
        self.connection = RawConnection(running.address, timeout=60)

    def send_all(self, requests: list[Message], version: int) -> None:
        self.connection.send_bytes(b"".join(request_frame(each, version, 1, "many") for each in requests))
        for _ in requests:
            self.connection.receive_frame()

    def ask(self, request: Message, version: int) -> tuple[Message, int]:
        """The answer, and the turns of the loop until it came."""
        before = self.turns.count
        answer = self.connection.call(request, version)
        return answer, self.turns.count - before


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixture]:
    settings = {
        "log.dirs": str(tmp_path_factory.mktemp("long")),
        "authorizer.class.name": f"{__name__}.Watched",
        "super.users": "User:ANONYMOUS",
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "2",
    }
    Watched.made = []
    running = InProcess(settings)
    running.start()
    try:
        (authorizer,) = Watched.made
        made = Fixture(running, authorizer)
        prepare(made.connection)
        fill(made)
        yield made
        made.connection.close()
    finally:
        running.stop()


def fill(fixture: Fixture) -> None:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t0", partitions=[partition])
    fixture.send_all([OffsetCommitRequest(group_id=f"g{n}", topics=[topic]) for n in range(MANY)], 8)
    fixture.send_all(
        [InitProducerIdRequest(transactional_id=f"x{n}", transaction_timeout_ms=1000) for n in range(MANY)], 4
    )
    rules = [
        CreateAclsRequest.AclCreation(
            resource_type=AclResourceType.TOPIC,
            resource_name=f"t{number}",
            principal="User:alice",
            host="*",
            operation=AclOperation.READ,
            permission_type=ALLOW,
        )
        for number in range(MANY)
    ]
    rules += [
        CreateAclsRequest.AclCreation(
            resource_type=AclResourceType.TOPIC,
            resource_name="shared",
            principal=f"User:u{number}",
            host="*",
            operation=AclOperation.READ,
            permission_type=ALLOW,
        )
        for number in range(SOME)
    ]
    fixture.connection.call(CreateAclsRequest(creations=rules), 3)
    users = [
        AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=f"u{number}", mechanism=1, iterations=4096, salt=b"s", salted_password=bytes(32)
        )
        for number in range(SOME)
    ]
    fixture.connection.call(AlterUserScramCredentialsRequest(upsertions=users), 0)
    quota = AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1e9)
    entries = [
        AlterClientQuotasRequest.EntryData(
            entity=[AlterClientQuotasRequest.EntityData(entity_type="user", entity_name=f"q{number}")],
            ops=[quota],
        )
        for number in range(SOME)
    ]
    fixture.connection.call(AlterClientQuotasRequest(entries=entries), 1)
    topics = [
        CreateTopicsRequest.CreatableTopic(name=f"m{number}", num_partitions=1, replication_factor=1)
        for number in range(SOME)
    ]
    fixture.connection.call(CreateTopicsRequest(topics=topics), 7)


def every_rule(kind: type[S]) -> S:
    found = kind()
    for name in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        setattr(found, name, ANY)
    for name in ("resource_name_filter", "principal_filter", "host_filter"):
        setattr(found, name, None)
    return found


@pytest.mark.parametrize(
    ("request_", "version", "least"),
    [
        (ListGroupsRequest(), 5, MANY),
        (ListGroupsRequest(states_filter=["Dead"]), 5, MANY),
        (ListTransactionsRequest(), 2, MANY),
        (ListTransactionsRequest(producer_id_filters=[2**62]), 2, MANY),
        (every_rule(DescribeAclsRequest), 3, MANY),
        (DescribeUserScramCredentialsRequest(users=None), 0, SOME),
        (DescribeClientQuotasRequest(), 1, SOME),
        (DescribeLogDirsRequest(topics=None), 4, SOME),
        (ListConfigResourcesRequest(resource_types=[2]), 1, SOME),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else str(value),
)
def test_each_entry_is_a_step_of_its_own(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, request_: Message, version: int, least: int
) -> None:
    monkeypatch.setattr(slices, "SLICE_NS", 0)
    _, turns = fixture.ask(request_, version)
    assert turns >= least


def test_nothing_is_missing(fixture: Fixture) -> None:
    groups, _ = fixture.ask(ListGroupsRequest(), 5)
    assert isinstance(groups, ListGroupsResponse)
    assert {group.group_id for group in groups.groups} == {f"g{n}" for n in range(MANY)}
    listed, _ = fixture.ask(ListTransactionsRequest(), 2)
    assert isinstance(listed, ListTransactionsResponse)
    ids = [state.transactional_id for state in listed.transaction_states]
    assert sorted(ids) == sorted(f"x{n}" for n in range(MANY))
    rules, _ = fixture.ask(every_rule(DescribeAclsRequest), 3)
    assert isinstance(rules, DescribeAclsResponse)
    names = {resource.resource_name for resource in rules.resources}
    assert names == {"shared", *(f"t{n}" for n in range(MANY))}
    users, _ = fixture.ask(DescribeUserScramCredentialsRequest(users=None), 0)
    assert isinstance(users, DescribeUserScramCredentialsResponse)
    assert [result.user for result in users.results] == sorted(f"u{n}" for n in range(SOME))
    quotas, _ = fixture.ask(DescribeClientQuotasRequest(), 1)
    assert isinstance(quotas, DescribeClientQuotasResponse)
    assert quotas.entries is not None
    assert len(quotas.entries) == SOME
    folders, _ = fixture.ask(DescribeLogDirsRequest(topics=None), 4)
    assert isinstance(folders, DescribeLogDirsResponse)
    assert {f"m{n}" for n in range(SOME)} <= {topic.name for topic in folders.results[0].topics}
    resources, _ = fixture.ask(ListConfigResourcesRequest(resource_types=[2]), 1)
    assert isinstance(resources, ListConfigResourcesResponse)
    assert {f"m{n}" for n in range(SOME)} <= {each.resource_name for each in resources.config_resources}


def test_groups_that_come_and_go_meanwhile_do_no_harm(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that lists, and one that makes groups and transactional ids between the steps."""
    monkeypatch.setattr(slices, "SLICE_NS", 0)
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t0", partitions=[partition])
    with RawConnection(fixture.connection.address, timeout=60) as other:
        for number in range(5):
            fixture.connection.send(ListGroupsRequest(), 5)
            other.call(OffsetCommitRequest(group_id=f"new-{number}", topics=[topic]), 8)
            listed = fixture.connection.receive(ListGroupsRequest, 5)
            assert isinstance(listed, ListGroupsResponse)
            assert listed.error_code == 0
            assert {f"g{n}" for n in range(MANY)} <= {group.group_id for group in listed.groups}
            fixture.connection.send(ListTransactionsRequest(), 2)
            other.call(InitProducerIdRequest(transactional_id=f"new-{number}", transaction_timeout_ms=9), 4)
            states = fixture.connection.receive(ListTransactionsRequest, 2)
            assert isinstance(states, ListTransactionsResponse)
            assert len(states.transaction_states) >= MANY


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (ApiKey.LIST_OFFSETS, ("topics",)),
        (ApiKey.OFFSET_COMMIT, ("topics",)),
        (ApiKey.TXN_OFFSET_COMMIT, ("topics",)),
        (ApiKey.DELETE_RECORDS, ("topics",)),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, ("topics",)),
        (ApiKey.DESCRIBE_PRODUCERS, ("topics",)),
        (ApiKey.CREATE_PARTITIONS, ("topics",)),
        (ApiKey.DELETE_GROUPS, ("groups_names",)),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
def test_few_names_are_checked_in_a_step(fixture: Fixture, key: ApiKey, path: tuple[str, ...]) -> None:
    # Topic ids of later versions are unknown here: these have no rules.
    version = min(served_apis()[key].max_version, 9)
    fixture.authorizer.longest = 0
    fixture.ask(request_with(API[key].request, version, path, 300), version)
    assert 0 < fixture.authorizer.longest <= NAMES_PER_STEP


def test_many_filters_of_rules_are_compared_between_the_requests_of_others(fixture: Fixture) -> None:
    filters = [
        DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=AclResourceType.GROUP,
            resource_name_filter=f"g{number}",
            principal_filter=None,
            host_filter=None,
            pattern_type_filter=ANY,
            operation=ANY,
            permission_type=ANY,
        )
        for number in range(500)
    ]
    answer, turns = fixture.ask(DeleteAclsRequest(filters=filters), 3)
    assert isinstance(answer, DeleteAclsResponse)
    assert [result.matching_acls for result in answer.filter_results] == [[]] * len(filters)
    assert turns > 40  # 100,000 comparisons; in one go there are 10 turns


def test_each_deleted_rule_is_a_step_of_its_own(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last test of the rules."""
    monkeypatch.setattr(slices, "SLICE_NS", 0)
    wanted = every_rule(DeleteAclsRequest.DeleteAclsFilter)
    wanted.resource_name_filter = "shared"
    answer, turns = fixture.ask(DeleteAclsRequest(filters=[wanted]), 3)
    assert isinstance(answer, DeleteAclsResponse)
    (result,) = answer.filter_results
    assert {rule.principal for rule in result.matching_acls} == {f"User:u{n}" for n in range(SOME)}
    assert turns > SOME
