"""A client of ZooKeeper 3.x on the running asyncio loop."""

from tidelog.metadata.zookeeper.acl import open_acl, secure_acl
from tidelog.metadata.zookeeper.close_session import close_session
from tidelog.metadata.zookeeper.connect_string import ConnectString
from tidelog.metadata.zookeeper.session import AuthenticationFailed
from tidelog.metadata.zookeeper.settings import ZooKeeperSettings
from tidelog.metadata.zookeeper.tree import ZooKeeperTree

__all__ = [
    "AuthenticationFailed",
    "ConnectString",
    "ZooKeeperSettings",
    "ZooKeeperTree",
    "close_session",
    "open_acl",
    "secure_acl",
]
