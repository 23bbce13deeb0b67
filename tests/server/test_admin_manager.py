"""Changes of settings by several brokers, which each write them to the tree."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.metadata.test_cluster_store import World, run
from tidelog.controller.interface import ConfigChange, ConfigEntity, ConfigKind, ConfigOperation
from tidelog.server.admin_manager import AdminManager

BROKERS = ConfigEntity(ConfigKind.BROKER, "<default>")


async def admin(world: World, name: str) -> AdminManager:
    """The part of one broker that changes settings."""

    async def refresh(entity_path: str) -> None: ...

    parts = SimpleNamespace(
        refresh=refresh,
        validate=lambda entity, configs: None,
        encoded=lambda entity, configs, stored: dict(configs),
        decoded=lambda entity, stored: dict(stored),
    )
    store = await world.store(name)
    some = cast("Any", parts)
    return AdminManager(some, store, some, some, some, timeout=30.0)


def test_changes_of_one_entity_by_two_brokers_at_once_are_both_made() -> None:
    async def story(world: World) -> None:
        one, two = await admin(world, "one"), await admin(world, "two")
        names = [f"setting.{number}" for number in range(20)]
        await asyncio.gather(
            *(
                (one, two)[number % 2].incremental_alter_configs(
                    BROKERS, [ConfigChange(name, ConfigOperation.SET, "1")]
                )
                for number, name in enumerate(names)
            )
        )
        store = await world.store("reader")
        assert sorted(await store.read_config(BROKERS.path)) == sorted(names)
        assert len(await store.read_config_changes(-1)) == len(names)

    run(story)


def test_a_change_is_made_once_although_connections_are_lost() -> None:
    async def story(world: World) -> None:
        manager = await admin(world, "one")
        world.zookeeper.loss = 0.2
        for number in range(30):
            change = ConfigChange(f"setting.{number}", ConfigOperation.SET, "1")
            await manager.incremental_alter_configs(BROKERS, [change])
        world.zookeeper.loss = 0.0
        store = await world.store("reader")
        assert len(await store.read_config(BROKERS.path)) == 30
        assert len(await store.read_config_changes(-1)) == 30

    run(story)
