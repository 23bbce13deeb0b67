"""The administrator's client that blocks: every call of `AsyncAdmin`, waited for.

>>> from tidelog.clients.adminclient.blocking import Admin
>>> from tidelog.clients.adminclient.topics import NewTopic
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
from typing import Concatenate, ParamSpec, Self, TypeVar

from tidelog.clients.adminclient.client import AsyncAdmin
from tidelog.clients.blocking import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """The same call, with the same arguments and the same words, that waits for its result."""

    @wraps(method)
    def call(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._admin, *args, **kwargs))

    return call


class Admin:
    """`with Admin(bootstrap_servers="localhost:9092") as admin:`, then Kafka's calls; for any thread.

    A call about several things raises the first error; with `partial=True` it gives a `Results` with the
    errors beside what went well. `timeout` is in seconds, default.api.timeout.ms where it is not given.
    """

    def __init__(self, config: Mapping[str, object] | None = None, /, **settings: object) -> None:
        self._admin = AsyncAdmin(config, **settings)
        self._thread = LoopThread(f"admin {self._admin.settings.client_id}".strip())

    def close(self) -> None:
        """End its connections and its thread. Harmless when called again."""
        if not self._thread.closed and not self._thread.is_inherited:
            try:
                self._thread.run(self._admin.close())
            finally:
                self._thread.close()

    def metrics(self) -> dict[str, float]:
        """Numbers under Kafka's names, such as request-total; times in milliseconds."""
        return self._admin.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    client_instance_id = _blocking(AsyncAdmin.client_instance_id)

    # Topics, partitions, records
    create_topics = _blocking(AsyncAdmin.create_topics)
    delete_topics = _blocking(AsyncAdmin.delete_topics)
    delete_topics_by_id = _blocking(AsyncAdmin.delete_topics_by_id)
    list_topics = _blocking(AsyncAdmin.list_topics)
    describe_topics = _blocking(AsyncAdmin.describe_topics)
    describe_topics_by_id = _blocking(AsyncAdmin.describe_topics_by_id)
    create_partitions = _blocking(AsyncAdmin.create_partitions)
    delete_records = _blocking(AsyncAdmin.delete_records)
    list_offsets = _blocking(AsyncAdmin.list_offsets)

    # Settings
    describe_configs = _blocking(AsyncAdmin.describe_configs)
    incremental_alter_configs = _blocking(AsyncAdmin.incremental_alter_configs)
    list_config_resources = _blocking(AsyncAdmin.list_config_resources)
    list_client_metrics_resources = _blocking(AsyncAdmin.list_client_metrics_resources)

    # Groups
    list_groups = _blocking(AsyncAdmin.list_groups)
    list_consumer_groups = _blocking(AsyncAdmin.list_consumer_groups)
    describe_consumer_groups = _blocking(AsyncAdmin.describe_consumer_groups)
    describe_classic_groups = _blocking(AsyncAdmin.describe_classic_groups)
    delete_consumer_groups = _blocking(AsyncAdmin.delete_consumer_groups)
    delete_share_groups = _blocking(AsyncAdmin.delete_share_groups)
    delete_streams_groups = _blocking(AsyncAdmin.delete_streams_groups)
    remove_members_from_consumer_group = _blocking(AsyncAdmin.remove_members_from_consumer_group)

    # Offsets of groups
    list_consumer_group_offsets = _blocking(AsyncAdmin.list_consumer_group_offsets)
    alter_consumer_group_offsets = _blocking(AsyncAdmin.alter_consumer_group_offsets)
    delete_consumer_group_offsets = _blocking(AsyncAdmin.delete_consumer_group_offsets)
    list_streams_group_offsets = _blocking(AsyncAdmin.list_streams_group_offsets)
    alter_streams_group_offsets = _blocking(AsyncAdmin.alter_streams_group_offsets)
    delete_streams_group_offsets = _blocking(AsyncAdmin.delete_streams_group_offsets)
    list_share_group_offsets = _blocking(AsyncAdmin.list_share_group_offsets)
    alter_share_group_offsets = _blocking(AsyncAdmin.alter_share_group_offsets)
    delete_share_group_offsets = _blocking(AsyncAdmin.delete_share_group_offsets)

    # Share and streams groups
    describe_share_groups = _blocking(AsyncAdmin.describe_share_groups)
    describe_streams_groups = _blocking(AsyncAdmin.describe_streams_groups)

    # Transactions and producers
    list_transactions = _blocking(AsyncAdmin.list_transactions)
    describe_transactions = _blocking(AsyncAdmin.describe_transactions)
    describe_producers = _blocking(AsyncAdmin.describe_producers)
    abort_transaction = _blocking(AsyncAdmin.abort_transaction)
    force_terminate_transaction = _blocking(AsyncAdmin.force_terminate_transaction)
    fence_producers = _blocking(AsyncAdmin.fence_producers)

    # The cluster
    describe_cluster = _blocking(AsyncAdmin.describe_cluster)
    describe_api_versions = _blocking(AsyncAdmin.describe_api_versions)
    describe_features = _blocking(AsyncAdmin.describe_features)
    update_features = _blocking(AsyncAdmin.update_features)
    describe_metadata_quorum = _blocking(AsyncAdmin.describe_metadata_quorum)
    add_raft_voter = _blocking(AsyncAdmin.add_raft_voter)
    remove_raft_voter = _blocking(AsyncAdmin.remove_raft_voter)
    unregister_broker = _blocking(AsyncAdmin.unregister_broker)
    describe_log_dirs = _blocking(AsyncAdmin.describe_log_dirs)
    describe_replica_log_dirs = _blocking(AsyncAdmin.describe_replica_log_dirs)
    alter_replica_log_dirs = _blocking(AsyncAdmin.alter_replica_log_dirs)
    alter_partition_reassignments = _blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(AsyncAdmin.list_partition_reassignments)
    elect_leaders = _blocking(AsyncAdmin.elect_leaders)

    # Access rules
    describe_acls = _blocking(AsyncAdmin.describe_acls)
    create_acls = _blocking(AsyncAdmin.create_acls)
    delete_acls = _blocking(AsyncAdmin.delete_acls)

    # Users and quotas
    describe_user_scram_credentials = _blocking(AsyncAdmin.describe_user_scram_credentials)
    alter_user_scram_credentials = _blocking(AsyncAdmin.alter_user_scram_credentials)
    create_delegation_token = _blocking(AsyncAdmin.create_delegation_token)
    renew_delegation_token = _blocking(AsyncAdmin.renew_delegation_token)
    expire_delegation_token = _blocking(AsyncAdmin.expire_delegation_token)
    describe_delegation_tokens = _blocking(AsyncAdmin.describe_delegation_tokens)
    describe_client_quotas = _blocking(AsyncAdmin.describe_client_quotas)
    alter_client_quotas = _blocking(AsyncAdmin.alter_client_quotas)
