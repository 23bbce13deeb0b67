"""The blocking admin client: every call of `AsyncAdmin`, which waits for its result.

>>> from tidelog.clients.admin.blocking import Admin
>>> from tidelog.clients.admin.topics import NewTopic
>>> with Admin(bootstrap_servers=bootstrap) as admin:
...     created = admin.create_topics([NewTopic("rivers", num_partitions=3)])
...     described = admin.describe_topics(["rivers"])
>>> created["rivers"].num_partitions, len(described["rivers"].partitions)
(3, 3)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar, Unpack

from tidelog.clients.admin.areas import (
    AreaCall,
    acls,
    cluster,
    configs,
    group_offsets,
    groups,
    other_groups,
    topics,
    transactions,
    users,
)
from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.blocking import LoopThread

if TYPE_CHECKING:
    from tidelog.clients.typed_settings import AdminClientConfig

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """The blocking form of a call, with the same arguments and docstring."""
    if isinstance(method, AreaCall):
        return method.wrapped(_blocking)

    @wraps(method)
    def call(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._admin, *args, **kwargs))

    return call


class Admin:
    """`with Admin(bootstrap_servers="localhost:9092") as admin:`, then Kafka's calls, from any thread.

    Takes Kafka's settings with underscores or as a dict. A call about several things raises the first error.
    With `partial=True` it returns a `Results` with the values and the errors. `timeout` is in seconds; the
    default is default.api.timeout.ms.
    """

    def __init__(
        self, config: Mapping[str, object] | None = None, /, **settings: Unpack[AdminClientConfig]
    ) -> None:
        self._admin = AsyncAdmin(config, **settings)
        self._thread = LoopThread(f"admin {self._admin.settings.client_id}".strip())

    def close(self) -> None:
        """Close the connections and end the thread. A second call does nothing."""
        if not self._thread.closed and not self._thread.is_inherited:
            try:
                self._thread.run(self._admin.close())
            finally:
                self._thread.close()

    def metrics(self) -> dict[str, float]:
        """Metrics with Kafka's names, such as request-total; times are in milliseconds."""
        return self._admin.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    connect = _blocking(AsyncAdmin.connect)
    client_instance_id = _blocking(AsyncAdmin.client_instance_id)

    # Topics, partitions, records
    create_topics = _blocking(topics.create_topics)
    delete_topics = _blocking(topics.delete_topics)
    delete_topics_by_id = _blocking(topics.delete_topics_by_id)
    list_topics = _blocking(topics.list_topics)
    describe_topics = _blocking(topics.describe_topics)
    describe_topics_by_id = _blocking(topics.describe_topics_by_id)
    create_partitions = _blocking(topics.create_partitions)
    delete_records = _blocking(topics.delete_records)
    list_offsets = _blocking(topics.list_offsets)

    # Settings
    describe_configs = _blocking(configs.describe_configs)
    incremental_alter_configs = _blocking(configs.incremental_alter_configs)
    list_config_resources = _blocking(configs.list_config_resources)
    list_client_metrics_resources = _blocking(configs.list_client_metrics_resources)

    # Groups
    list_groups = _blocking(groups.list_groups)
    list_consumer_groups = _blocking(groups.list_consumer_groups)
    describe_consumer_groups = _blocking(groups.describe_consumer_groups)
    describe_classic_groups = _blocking(groups.describe_classic_groups)
    delete_consumer_groups = _blocking(groups.delete_consumer_groups)
    delete_share_groups = _blocking(groups.delete_share_groups)
    delete_streams_groups = _blocking(groups.delete_streams_groups)
    remove_members_from_consumer_group = _blocking(groups.remove_members_from_consumer_group)

    # Offsets of groups
    list_consumer_group_offsets = _blocking(group_offsets.list_consumer_group_offsets)
    alter_consumer_group_offsets = _blocking(group_offsets.alter_consumer_group_offsets)
    delete_consumer_group_offsets = _blocking(group_offsets.delete_consumer_group_offsets)
    list_streams_group_offsets = _blocking(group_offsets.list_streams_group_offsets)
    alter_streams_group_offsets = _blocking(group_offsets.alter_streams_group_offsets)
    delete_streams_group_offsets = _blocking(group_offsets.delete_streams_group_offsets)
    list_share_group_offsets = _blocking(group_offsets.list_share_group_offsets)
    alter_share_group_offsets = _blocking(group_offsets.alter_share_group_offsets)
    delete_share_group_offsets = _blocking(group_offsets.delete_share_group_offsets)

    # Share and streams groups
    describe_share_groups = _blocking(other_groups.describe_share_groups)
    describe_streams_groups = _blocking(other_groups.describe_streams_groups)

    # Transactions and producers
    list_transactions = _blocking(transactions.list_transactions)
    describe_transactions = _blocking(transactions.describe_transactions)
    describe_producers = _blocking(transactions.describe_producers)
    find_hanging_transactions = _blocking(transactions.find_hanging_transactions)
    abort_transaction = _blocking(transactions.abort_transaction)
    force_terminate_transaction = _blocking(transactions.force_terminate_transaction)
    fence_producers = _blocking(transactions.fence_producers)

    # The cluster
    describe_cluster = _blocking(cluster.describe_cluster)
    describe_api_versions = _blocking(cluster.describe_api_versions)
    describe_features = _blocking(cluster.describe_features)
    update_features = _blocking(cluster.update_features)
    describe_metadata_quorum = _blocking(cluster.describe_metadata_quorum)
    add_raft_voter = _blocking(cluster.add_raft_voter)
    remove_raft_voter = _blocking(cluster.remove_raft_voter)
    unregister_broker = _blocking(cluster.unregister_broker)
    describe_log_dirs = _blocking(cluster.describe_log_dirs)
    describe_replica_log_dirs = _blocking(cluster.describe_replica_log_dirs)
    alter_replica_log_dirs = _blocking(cluster.alter_replica_log_dirs)
    alter_partition_reassignments = _blocking(cluster.alter_partition_reassignments)
    list_partition_reassignments = _blocking(cluster.list_partition_reassignments)
    elect_leaders = _blocking(cluster.elect_leaders)

    # ACLs
    describe_acls = _blocking(acls.describe_acls)
    create_acls = _blocking(acls.create_acls)
    delete_acls = _blocking(acls.delete_acls)

    # Users and quotas
    describe_user_scram_credentials = _blocking(users.describe_user_scram_credentials)
    alter_user_scram_credentials = _blocking(users.alter_user_scram_credentials)
    create_delegation_token = _blocking(users.create_delegation_token)
    renew_delegation_token = _blocking(users.renew_delegation_token)
    expire_delegation_token = _blocking(users.expire_delegation_token)
    describe_delegation_tokens = _blocking(users.describe_delegation_tokens)
    describe_client_quotas = _blocking(users.describe_client_quotas)
    alter_client_quotas = _blocking(users.alter_client_quotas)
