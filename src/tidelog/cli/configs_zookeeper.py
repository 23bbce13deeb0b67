"""`tidelog configs --zookeeper`: SCRAM credentials of users in the tree itself, as kafka-configs 3.9.

No broker is asked: the first users, with whom brokers log in at each other, are made before any broker runs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.topics_zookeeper import DEPRECATED
from tidelog.clock import SystemClock
from tidelog.metadata import paths
from tidelog.metadata.async_tree import ensure_path
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.zookeeper import ZooKeeperSettings, ZooKeeperTree
from tidelog.security.scram import BY_NAME, ScramCredential, scram_credential

if TYPE_CHECKING:
    from tidelog.cli.configs import Entity

USERS = "users/"


async def run(
    connect: str,
    settings: ZooKeeperSettings,
    entities: Sequence[Entity],
    add: Mapping[str, str],
    remove: Sequence[str],
    *,
    alters: bool,
) -> None:
    """Raises ValueError and TreeError."""
    if [entity.type for entity in entities] != ["users"]:
        raise ValueError("--zookeeper is for the SCRAM credentials of users alone: use --bootstrap-server")
    click.echo(DEPRECATED, err=True)
    rng = random.Random()
    async with await ZooKeeperTree.connect(connect, settings, rng=rng, create_chroot=True) as tree:
        store = ClusterStore(tree, SystemClock(), rng)
        user = entities[0].name
        if not alters:
            await describe(store, user)
            return
        if not user:
            raise ValueError("The default of all users has no SCRAM credentials: name a user.")
        await ensure_path(tree, paths.CONFIG_CHANGES)
        await alter(store, user, add, remove)
        click.echo(f"Completed updating config for entity: user-principal '{user}'.")


async def alter(store: ClusterStore, user: str, add: Mapping[str, str], remove: Sequence[str]) -> None:
    from tidelog.cli.configs import scram_password

    others = [name for name in (*add, *remove) if name not in BY_NAME]
    if others:
        raise ValueError(f"Only SCRAM credentials can be changed with --zookeeper, not {', '.join(others)}")
    new: dict[str, str] = {}
    for name, text in add.items():
        iterations, password = scram_password(name, text)
        new[name] = scram_credential(password, BY_NAME[name], iterations).format()

    def after(present: Mapping[str, str]) -> dict[str, str]:
        missing = [name for name in remove if name not in present]
        if missing:
            raise ValueError(f"Invalid config(s): {','.join(missing)}")
        return {name: text for name, text in present.items() if name not in remove} | new

    await store.change_config(paths.entity_path("users", user), after)


async def describe(store: ClusterStore, user: str | None) -> None:
    entities = await store.read_entity_configs()
    for path, configs in sorted(entities.items()):
        name = paths.decode_name(path.removeprefix(USERS))
        if not path.startswith(USERS) or path.count("/") > 1 or user not in (None, name):
            continue
        listed = [
            f"{mechanism}=iterations={ScramCredential.parse(configs[mechanism]).iterations}"
            for mechanism in BY_NAME
            if mechanism in configs
        ]
        if listed:
            click.echo(f"SCRAM credential configs for user-principal '{name}' are {', '.join(listed)}")
