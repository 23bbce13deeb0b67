"""The administrator's client for coroutines.

>>> import asyncio
>>> from tidelog.clients.adminclient.client import AsyncAdmin
>>> from tidelog.clients.adminclient.topics import NewTopic
>>> async def main(bootstrap: str) -> list[str]:
...     async with AsyncAdmin(bootstrap_servers=bootstrap) as admin:
...         await admin.create_topics([NewTopic("clouds", num_partitions=3)])
...         return [name for name in await admin.list_topics() if name == "clouds"]
>>> asyncio.run(main(bootstrap))
['clouds']
"""

from __future__ import annotations

from tidelog.clients.adminclient.acls import AclAdmin
from tidelog.clients.adminclient.cluster import ClusterAdmin
from tidelog.clients.adminclient.configs import ConfigAdmin
from tidelog.clients.adminclient.group_offsets import GroupOffsetAdmin
from tidelog.clients.adminclient.groups import GroupAdmin
from tidelog.clients.adminclient.other_groups import OtherGroupAdmin
from tidelog.clients.adminclient.topics import TopicAdmin
from tidelog.clients.adminclient.transactions import TransactionAdmin
from tidelog.clients.adminclient.users import UserAdmin


class AsyncAdmin(
    TopicAdmin,
    ConfigAdmin,
    GroupAdmin,
    GroupOffsetAdmin,
    OtherGroupAdmin,
    TransactionAdmin,
    ClusterAdmin,
    AclAdmin,
    UserAdmin,
):
    """`async with AsyncAdmin(bootstrap_servers="localhost:9092") as admin:`, then Kafka's calls.

    A call about several things raises the first error; with `partial=True` it gives a `Results` with the
    errors beside what went well. `timeout` is in seconds, default.api.timeout.ms where it is not given.
    """
