"""A process with a ZooKeeper session and a guardian, which a test kills. Its settings are its arguments."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile

from tidelog.metadata.zookeeper import ZooKeeperTree
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.guardian import Guardian
from tidelog.server.zookeeper_connection import connect_zookeeper


async def main() -> None:
    node, *settings = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        given = dict(setting.split("=", 1) for setting in settings)
        config = BrokerConfig.load(None, {"log.dirs": folder, **given}).cluster
        assert config is not None
        tree = await connect_zookeeper(config, folder, random.Random(1))
        assert isinstance(tree, ZooKeeperTree)
        await tree.create(node, b"", ephemeral=True)
        guardian = Guardian(config, tree)
        guardian.start()
        print(guardian.pid, flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        if line.strip() == "stop":
            await guardian.stop()
        # A process that ends here without a word has died as well.


if __name__ == "__main__":
    asyncio.run(main())
