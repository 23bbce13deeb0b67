"""Followers fetch while the request queue is full of producers who wait for followers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.controlled import TOPIC_ID
from tests.server.cluster_broker import BROKERS, CLIENTS, ClusterBroker
from tests.server.test_commit_waits import FOLLOWER, lead
from tests.server.test_controller_requests import drain_the_queue, fill_the_queue
from tests.support.raw import NoAnswer
from tidelog.network.limits import NetworkLimits
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.security.acl import AccessControlEntry, AclPermissionType, ResourcePattern
from tidelog.security.acl_authorizer import AclAuthorizer
from tidelog.security.operations import CLUSTER_NAME, AclOperation, AclResourceType


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[ClusterBroker]:
    """A broker that handles one request at a time."""
    with ClusterBroker(tmp_path / "log", NetworkLimits(queued_max_requests=1)) as running:
        lead(running)
        yield running


def fetch() -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, partition_max_bytes=100)
    topic = FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[partition])
    request = FetchRequest(max_wait_ms=0, max_bytes=100, topics=[topic])
    request.replica_state = FetchRequest.ReplicaState(replica_id=FOLLOWER, replica_epoch=5)
    return request


def test_a_follower_does_not_wait_behind_clients(narrow: ClusterBroker) -> None:
    follower = narrow.connect(BROKERS)
    follower.call(fetch(), 17)
    fill_the_queue(narrow)
    follower.call(fetch(), 17)
    drain_the_queue(narrow)


def test_a_client_that_calls_itself_a_follower_waits(narrow: ClusterBroker) -> None:
    client = narrow.connect(CLIENTS)
    client.call(fetch(), 17)
    fill_the_queue(narrow)
    client.send(fetch(), 17)
    with pytest.raises(NoAnswer):
        client.receive(FetchRequest, 17, 0.2)
    drain_the_queue(narrow)
    client.receive(FetchRequest, 17)


@pytest.mark.parametrize("may_follow", [True, False])
def test_a_follower_needs_cluster_action_on_the_listener_of_the_brokers(
    narrow: ClusterBroker, may_follow: bool
) -> None:
    authorizer = AclAuthorizer()
    authorizer.configure({"allow.everyone.if.no.acl.found": "true"})
    allowed = "User:ANONYMOUS" if may_follow else "User:broker"
    rule = AccessControlEntry(allowed, "*", AclOperation.CLUSTER_ACTION, AclPermissionType.ALLOW)
    authorizer.cache.replace(ResourcePattern(AclResourceType.CLUSTER, CLUSTER_NAME), [rule])
    narrow.services.authorizer = authorizer
    client = narrow.connect(BROKERS)
    client.call(fetch(), 17)
    fill_the_queue(narrow)
    client.send(fetch(), 17)
    if may_follow:
        client.receive(FetchRequest, 17)
    else:
        with pytest.raises(NoAnswer):
            client.receive(FetchRequest, 17, 0.2)
    drain_the_queue(narrow)
    if not may_follow:
        client.receive(FetchRequest, 17)
