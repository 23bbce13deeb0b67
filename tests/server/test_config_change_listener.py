"""A broker applies the settings that others change, whatever one of the changes looks like."""

from __future__ import annotations

import asyncio

import pytest

from tests.metadata.test_cluster_store import World, run
from tidelog.metadata import nodes
from tidelog.metadata.paths import CONFIG_CHANGE_PREFIX
from tidelog.server.config_change_listener import ConfigChangeListener


class Settings:
    """Notes the settings that it gets; the settings of `users/bad` it cannot apply."""

    def __init__(self) -> None:
        self.applied: dict[str, dict[str, str]] = {}

    def entity_changed(self, entity_path: str, configs: dict[str, str]) -> None:
        if entity_path == "users/bad":
            raise ValueError("these settings have no meaning")
        self.applied[entity_path] = configs

    def entities(self) -> list[str]:
        return []

    def topics(self) -> list[str]:
        return []


@pytest.mark.parametrize("entity_path", ["users/bad", "users/", "topics/.."])
def test_a_change_that_cannot_be_applied_holds_up_no_other(entity_path: str) -> None:
    async def story(world: World) -> None:
        listener, settings = ConfigChangeListener(await world.store("broker")), Settings()
        await listener.begin()
        listener.start(settings)
        store = await world.store("other")
        notice = nodes.encode_config_change(entity_path)
        await store.tree.create(CONFIG_CHANGE_PREFIX, notice, sequential=True)
        for number in range(2):
            await store.write_config("users/good", {"a": str(number)})
            await asyncio.sleep(1)
            assert settings.applied == {"users/good": {"a": str(number)}}
        await listener.close()

    run(story)


def test_settings_that_cannot_be_applied_hold_up_no_others_after_a_lost_session() -> None:
    async def story(world: World) -> None:
        listener, settings = ConfigChangeListener(await world.store("broker")), Settings()
        await listener.begin()
        listener.start(settings)
        store = await world.store("other")
        world.zookeeper.cut("broker")
        for name in ("bad", "fine", "good"):
            await store.write_config(f"users/{name}", {"a": "1"})
        world.zookeeper.expire("broker")
        world.zookeeper.heal("broker")
        await asyncio.sleep(30)
        assert settings.applied == {"users/fine": {"a": "1"}, "users/good": {"a": "1"}}
        await listener.close()

    run(story)
