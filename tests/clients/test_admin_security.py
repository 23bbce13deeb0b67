"""What an administrator does with rules, users, quotas, leaders and other kinds of groups.

Tests that need an API are left out where the broker does not serve it; there, the sentence that says so is
tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.support.topics import PatientAdmin
from tests.support.wait import eventually
from tidelog.clients.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    Admin,
    ElectionType,
    FeatureUpdate,
    NewTopic,
    PatternType,
    Principal,
    QuotaComponent,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tidelog.clients.connection import Connection, split_address
from tidelog.errors import (
    BrokerIdNotRegistered,
    DelegationTokenRequestNotAllowed,
    GroupIdNotFound,
    KafkaError,
    NoReassignmentInProgress,
    ResourceNotFound,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from tidelog.protocol import api
from tidelog.protocol.wire import uuid_to_text
from tidelog.security.security_folder import AUTHORIZER
from tidelog.testing import Broker

Named = Callable[[str], str]


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with PatientAdmin(bootstrap_servers=bootstrap, default_api_timeout_ms=30_000) as client:
        yield client


def test_rules_are_made_found_and_deleted() -> None:
    """The brokers that the other tests share have no authorizer."""
    settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with Broker(settings) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        check_rules(admin, "t")


def check_rules(admin: Admin, name: str) -> None:
    read = AclBinding(AclResourceType.TOPIC, name, "User:alice", AclOperation.READ)
    write = AclBinding(
        AclResourceType.TOPIC,
        name,
        "User:bob",
        AclOperation.WRITE,
        AclPermissionType.DENY,
        "10.0.0.1",
        PatternType.PREFIXED,
    )
    admin.create_acls([read, write])
    wanted = AclBindingFilter(AclResourceType.TOPIC, name)
    eventually(lambda: set(admin.describe_acls(wanted)) == {read, write}, "both rules are there")
    alice = AclBindingFilter(AclResourceType.TOPIC, name, principal="User:alice")
    assert admin.describe_acls(alice) == [read]
    assert admin.delete_acls([alice])[alice] == [read]
    assert admin.delete_acls([wanted])[wanted] == [write]
    eventually(lambda: not admin.describe_acls(wanted), "no rule is left")


@pytest.mark.needs("AlterUserScramCredentials")
def test_passwords_are_set_and_deleted(admin: Admin, bootstrap: str, new_name: Named) -> None:
    user = new_name("u")
    both = [
        UserScramCredentialUpsertion(user, "secret", ScramMechanism.SCRAM_SHA_256, 4096),
    ]
    admin.alter_user_scram_credentials(both)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, "secret")])

    def mechanisms() -> list[tuple[ScramMechanism, int]] | None:
        found = admin.describe_user_scram_credentials([user], partial=True).get(user)
        return found and sorted(found)

    expected = [(ScramMechanism.SCRAM_SHA_256, 4096), (ScramMechanism.SCRAM_SHA_512, 8192)]
    eventually(lambda: mechanisms() == expected, "both mechanisms are known")
    assert user in admin.describe_user_scram_credentials()
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, mechanism)])
    eventually(
        lambda: user in admin.describe_user_scram_credentials([user], partial=True).errors, "it is gone"
    )
    with pytest.raises(ResourceNotFound):
        admin.describe_user_scram_credentials([user])


def test_a_password_does_not_show() -> None:
    assert "secret" not in repr(UserScramCredentialUpsertion("alice", "secret"))


@pytest.mark.needs("DescribeClientQuotas")
def test_quotas_are_set_described_and_removed(admin: Admin, bootstrap: str, new_name: Named) -> None:
    entity = (("user", new_name("u")), ("client-id", None))
    changed = {"producer_byte_rate": 1000.0, "request_percentage": 50.0}
    assert list(admin.alter_client_quotas({entity: changed})) == [entity]
    reverse = entity[::-1]
    assert list(admin.alter_client_quotas({reverse: changed}, validate_only=True)) == [reverse]
    components = [QuotaComponent("user", entity[0][1]), QuotaComponent("client-id")]

    def quotas() -> dict[str, float]:
        return admin.describe_client_quotas(components).get(entity, {})

    eventually(lambda: quotas() == changed, "they hold")
    admin.alter_client_quotas({entity: {"producer_byte_rate": None, "request_percentage": None}})
    eventually(lambda: not quotas(), "they are gone")
    anybody = admin.describe_client_quotas([QuotaComponent("user", any_name=True)], strict=True)
    assert entity not in anybody


@pytest.mark.needs("DescribeClientQuotas")
def test_topics_beyond_a_quota_are_made_when_it_allows_them(
    admin: Admin, bootstrap: str, new_name: Named
) -> None:
    client = new_name("c")
    entity = (("client-id", client),)
    admin.alter_client_quotas({entity: {"controller_mutation_rate": 2.0}})
    try:
        components = [QuotaComponent("client-id", client)]
        eventually(lambda: entity in admin.describe_client_quotas(components), "the quota holds")
        names = [new_name("t") for _ in range(5)]
        with Admin(bootstrap_servers=bootstrap, client_id=client) as slow:
            made = [slow.create_topics([NewTopic(name, 8, 1)], timeout=60) for name in names]
        assert [list(results) for results in made] == [[name] for name in names]
    finally:
        admin.alter_client_quotas({entity: {"controller_mutation_rate": None}})


@pytest.mark.needs("CreateDelegationToken")
def test_tokens_are_refused_to_whom_they_are_not_allowed(admin: Admin, bootstrap: str) -> None:
    for call in (
        lambda: admin.create_delegation_token(renewers=[Principal("User", "alice")]),
        lambda: admin.renew_delegation_token(b"x"),
        lambda: admin.expire_delegation_token(b"x"),
        lambda: admin.describe_delegation_tokens(),
    ):
        with pytest.raises(DelegationTokenRequestNotAllowed):  # over a connection without a user
            call()


@pytest.mark.needs("ElectLeaders")
def test_leaders_are_elected(admin: Admin, bootstrap: str, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name, 2)])
    found = admin.elect_leaders(ElectionType.PREFERRED, [(name, 0), (name, 1)])
    assert dict(found) == {(name, 0): False, (name, 1): False}  # they lead already


@pytest.mark.needs("AlterPartitionReassignments")
def test_reassignments_are_altered_and_listed(admin: Admin, bootstrap: str, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name, 1)])
    broker = admin.describe_cluster().nodes[0].id
    admin.alter_partition_reassignments({(name, 0): [broker]})
    eventually(lambda: not admin.list_partition_reassignments([(name, 0)]), "nothing is under way")
    with pytest.raises(NoReassignmentInProgress):
        admin.alter_partition_reassignments({(name, 0): None})


@pytest.mark.needs("DescribeQuorum")
def test_the_quorum_is_described(admin: Admin, bootstrap: str) -> None:
    quorum = admin.describe_metadata_quorum()
    assert quorum.leader_id in [voter.replica_id for voter in quorum.voters]
    assert quorum.high_watermark > 0
    assert quorum.leader_id in quorum.endpoints


@pytest.mark.needs("AddRaftVoter")
def test_what_the_quorum_refuses_is_raised(admin: Admin, bootstrap: str) -> None:
    directory = uuid_to_text(bytes(15) + b"\1")
    with pytest.raises(KafkaError):  # a quorum of fixed voters, or one that does not know this one
        admin.remove_raft_voter(4711, directory)
    with pytest.raises(KafkaError):
        admin.add_raft_voter(4711, directory, {"CONTROLLER": ("127.0.0.1", 1)}, cluster_id="another")
    with pytest.raises(BrokerIdNotRegistered):
        admin.unregister_broker(4711)


@pytest.mark.needs("UpdateFeatures")
def test_a_feature_is_not_raised_beyond_what_is_there(admin: Admin, bootstrap: str) -> None:
    with pytest.raises(KafkaError, match=r"feature|group\.version"):
        admin.update_features({"group.version": FeatureUpdate(99)}, validate_only=True)


@pytest.mark.needs("ShareGroupDescribe", "StreamsGroupDescribe", "DescribeShareGroupOffsets")
def test_groups_of_other_kinds_that_are_not_there(admin: Admin, bootstrap: str, new_name: Named) -> None:
    group = new_name("g")
    with pytest.raises(GroupIdNotFound):
        admin.describe_share_groups([group])
    with pytest.raises(GroupIdNotFound):
        admin.describe_streams_groups([group])
    assert admin.list_share_group_offsets([group])[group] == {}


@pytest.mark.needs("ShareGroupDescribe", "DescribeShareGroupOffsets")
def test_a_share_group_gets_offsets_and_loses_them(admin: Admin, bootstrap: str, new_name: Named) -> None:
    topic, group = new_name("t"), new_name("g")
    admin.create_topics([NewTopic(topic, 1)])
    eventually(
        lambda: not admin.alter_share_group_offsets(group, {(topic, 0): 1}, partial=True).errors,
        "the coordinator knows the topic",
    )
    assert admin.list_share_group_offsets([group])[group][topic, 0].start_offset == 1
    assert list(admin.list_share_group_offsets({group: [(topic, 0)]})[group]) == [(topic, 0)]
    assert admin.list_share_group_offsets({group: []})[group] == {}
    assert admin.describe_share_groups([group])[group].state == "Empty"
    results = admin.alter_share_group_offsets(group, {("missing", 0): 1}, partial=True)
    assert isinstance(results.errors["missing", 0], UnknownTopicOrPartition)
    admin.delete_share_group_offsets(group, [topic])
    admin.delete_share_groups([group])
    with pytest.raises(GroupIdNotFound):
        admin.describe_share_groups([group])


CALLS: dict[api.ApiKey, Callable[[Admin], object]] = {
    api.ApiKey.DESCRIBE_ACLS: lambda admin: admin.describe_acls(),
    api.ApiKey.CREATE_ACLS: lambda admin: admin.create_acls(
        [AclBinding(AclResourceType.TOPIC, "t", "User:alice", AclOperation.READ)]
    ),
    api.ApiKey.DELETE_ACLS: lambda admin: admin.delete_acls([AclBindingFilter()]),
    api.ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda admin: admin.describe_client_quotas(),
    api.ApiKey.ALTER_CLIENT_QUOTAS: lambda admin: admin.alter_client_quotas({(("user", "a"),): {"x": 1.0}}),
    api.ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda admin: admin.describe_user_scram_credentials(),
    api.ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda admin: admin.alter_user_scram_credentials([]),
    api.ApiKey.CREATE_DELEGATION_TOKEN: lambda admin: admin.create_delegation_token(),
    api.ApiKey.RENEW_DELEGATION_TOKEN: lambda admin: admin.renew_delegation_token(b"x"),
    api.ApiKey.EXPIRE_DELEGATION_TOKEN: lambda admin: admin.expire_delegation_token(b"x"),
    api.ApiKey.DESCRIBE_DELEGATION_TOKEN: lambda admin: admin.describe_delegation_tokens(),
    api.ApiKey.ELECT_LEADERS: lambda admin: admin.elect_leaders(ElectionType.PREFERRED),
    api.ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda admin: admin.alter_partition_reassignments({}),
    api.ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda admin: admin.list_partition_reassignments(),
    api.ApiKey.DESCRIBE_QUORUM: lambda admin: admin.describe_metadata_quorum(),
    api.ApiKey.ADD_RAFT_VOTER: lambda admin: admin.add_raft_voter(1, "A" * 22, {}),
    api.ApiKey.REMOVE_RAFT_VOTER: lambda admin: admin.remove_raft_voter(1, "A" * 22),
    api.ApiKey.UNREGISTER_BROKER: lambda admin: admin.unregister_broker(1),
    api.ApiKey.UPDATE_FEATURES: lambda admin: admin.update_features({}),
    api.ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: lambda admin: admin.client_instance_id(),
    api.ApiKey.SHARE_GROUP_DESCRIBE: lambda admin: admin.describe_share_groups(["g"]),
    api.ApiKey.STREAMS_GROUP_DESCRIBE: lambda admin: admin.describe_streams_groups(["g"]),
    api.ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda admin: admin.list_share_group_offsets(["g"]),
    api.ApiKey.ALTER_SHARE_GROUP_OFFSETS: lambda admin: admin.alter_share_group_offsets("g", {("t", 0): 1}),
    api.ApiKey.DELETE_SHARE_GROUP_OFFSETS: lambda admin: admin.delete_share_group_offsets("g", ["t"]),
}


@pytest.mark.parametrize("key", CALLS, ids=lambda key: key.name.lower())
def test_what_a_broker_does_not_serve_is_said_in_one_sentence(
    admin: Admin, bootstrap: str, key: api.ApiKey
) -> None:
    with Connection(*split_address(bootstrap)) as broker:
        if broker.serves(api.API[key].request):
            pytest.skip("this broker serves the API whose absence is tested")
    with pytest.raises(UnsupportedVersion) as raised:
        CALLS[key](admin)
    address = r"127\.0\.0\.1:\d+"
    assert re.fullmatch(f"the broker {address} does not serve {api.api_name(key)}", str(raised.value))
