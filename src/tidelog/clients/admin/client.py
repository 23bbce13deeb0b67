"""The admin client for coroutines.

>>> import asyncio
>>> from tidelog.clients.admin.client import AsyncAdmin
>>> from tidelog.clients.admin.topics import NewTopic
>>> async def main(bootstrap: str) -> list[str]:
...     async with AsyncAdmin(bootstrap_servers=bootstrap) as admin:
...         await admin.create_topics([NewTopic("clouds", num_partitions=3)])
...         return [name for name in await admin.list_topics() if name == "clouds"]
>>> asyncio.run(main(bootstrap))
['clouds']
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from tidelog.clients.admin.areas import (
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
from tidelog.clients.admin.driver import RETRIED, AdminApiDriver
from tidelog.clients.errors import ConfigError
from tidelog.clients.settings import admin_settings
from tidelog.clients.telemetry import Telemetry
from tidelog.errors import NetworkException

if TYPE_CHECKING:
    from tidelog.clients.typed_settings import AdminClientConfig


class AsyncAdmin:
    """`async with AsyncAdmin(bootstrap_servers="localhost:9092") as admin:`, then Kafka's calls.

    Takes Kafka's settings with underscores or as a dict. A call about several things raises the first error.
    With `partial=True` it returns a `Results` with the values and the errors. `timeout` is in seconds; the
    default is default.api.timeout.ms.
    """

    def __init__(
        self, config: Mapping[str, object] | None = None, /, **settings: Unpack[AdminClientConfig]
    ) -> None:
        self.settings = admin_settings(config, **settings)
        controllers = self.settings.bootstrap_controllers
        if controllers and self.settings.bootstrap_servers:
            raise ConfigError(
                "bootstrap.controllers", ",".join(controllers), "expected alone, or bootstrap.servers alone"
            )
        self.driver = AdminApiDriver(self.settings)
        self._client = self.driver.client
        self._telemetry = Telemetry(self._client)

    async def start(self) -> None:
        """Start the client, as `async with` and the first call do. It connects with the first request."""
        await self.driver.start()

    async def connect(self, *, timeout: float | None = None) -> None:
        """Connect to a bootstrap server. Raises if none can be reached, after one attempt each.

        Every call connects by itself and retries for its whole timeout. This method is for programs that
        prefer to fail at once without a broker.
        """
        await self.start()
        try:
            await self._client.any_connection(timeout=self.driver.deadline(timeout).left)
        except RETRIED:
            links = sorted(self._client.links(), key=lambda link: link.node.id, reverse=True)
            errors = [link.error for link in links if link.error is not None]
            if not errors:
                raise
            if len(errors) == 1:
                raise errors[0] from None
            raise NetworkException("; ".join(map(str, errors))) from None

    async def close(self) -> None:
        await self._client.close()

    def metrics(self) -> dict[str, float]:
        """Metrics with Kafka's names, such as request-total; times are in milliseconds."""
        return self._client.metrics.snapshot()

    async def client_instance_id(self, *, timeout: float | None = None) -> str:
        """The client instance id, as text.

        Raises UnsupportedVersion if the broker does not collect client metrics.
        """
        await self.start()
        return await self._telemetry.client_instance_id(self.driver.deadline(timeout).seconds)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Topics, partitions, records
    create_topics = topics.create_topics
    delete_topics = topics.delete_topics
    delete_topics_by_id = topics.delete_topics_by_id
    list_topics = topics.list_topics
    describe_topics = topics.describe_topics
    describe_topics_by_id = topics.describe_topics_by_id
    create_partitions = topics.create_partitions
    delete_records = topics.delete_records
    list_offsets = topics.list_offsets

    # Settings
    describe_configs = configs.describe_configs
    incremental_alter_configs = configs.incremental_alter_configs
    list_config_resources = configs.list_config_resources
    list_client_metrics_resources = configs.list_client_metrics_resources

    # Groups
    list_groups = groups.list_groups
    list_consumer_groups = groups.list_consumer_groups
    describe_consumer_groups = groups.describe_consumer_groups
    describe_classic_groups = groups.describe_classic_groups
    delete_consumer_groups = groups.delete_consumer_groups
    delete_share_groups = groups.delete_share_groups
    delete_streams_groups = groups.delete_streams_groups
    remove_members_from_consumer_group = groups.remove_members_from_consumer_group

    # Offsets of groups
    list_consumer_group_offsets = group_offsets.list_consumer_group_offsets
    alter_consumer_group_offsets = group_offsets.alter_consumer_group_offsets
    delete_consumer_group_offsets = group_offsets.delete_consumer_group_offsets
    list_streams_group_offsets = group_offsets.list_streams_group_offsets
    alter_streams_group_offsets = group_offsets.alter_streams_group_offsets
    delete_streams_group_offsets = group_offsets.delete_streams_group_offsets
    list_share_group_offsets = group_offsets.list_share_group_offsets
    alter_share_group_offsets = group_offsets.alter_share_group_offsets
    delete_share_group_offsets = group_offsets.delete_share_group_offsets

    # Share and streams groups
    describe_share_groups = other_groups.describe_share_groups
    describe_streams_groups = other_groups.describe_streams_groups

    # Transactions and producers
    list_transactions = transactions.list_transactions
    describe_transactions = transactions.describe_transactions
    describe_producers = transactions.describe_producers
    find_hanging_transactions = transactions.find_hanging_transactions
    abort_transaction = transactions.abort_transaction
    force_terminate_transaction = transactions.force_terminate_transaction
    fence_producers = transactions.fence_producers

    # The cluster
    describe_cluster = cluster.describe_cluster
    describe_api_versions = cluster.describe_api_versions
    describe_features = cluster.describe_features
    update_features = cluster.update_features
    describe_metadata_quorum = cluster.describe_metadata_quorum
    add_raft_voter = cluster.add_raft_voter
    remove_raft_voter = cluster.remove_raft_voter
    unregister_broker = cluster.unregister_broker
    describe_log_dirs = cluster.describe_log_dirs
    describe_replica_log_dirs = cluster.describe_replica_log_dirs
    alter_replica_log_dirs = cluster.alter_replica_log_dirs
    alter_partition_reassignments = cluster.alter_partition_reassignments
    list_partition_reassignments = cluster.list_partition_reassignments
    elect_leaders = cluster.elect_leaders

    # ACLs
    describe_acls = acls.describe_acls
    create_acls = acls.create_acls
    delete_acls = acls.delete_acls

    # Users and quotas
    describe_user_scram_credentials = users.describe_user_scram_credentials
    alter_user_scram_credentials = users.alter_user_scram_credentials
    create_delegation_token = users.create_delegation_token
    renew_delegation_token = users.renew_delegation_token
    expire_delegation_token = users.expire_delegation_token
    describe_delegation_tokens = users.describe_delegation_tokens
    describe_client_quotas = users.describe_client_quotas
    alter_client_quotas = users.alter_client_quotas
