"""Partitions whose logs may have lost their ends are led with a new epoch, by one change of the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.controller.hosts import ADDRESS, BROKER, FewRules, RecordingHost, running
from tidelog.clock import ManualClock
from tidelog.controller.interface import NewTopic
from tidelog.controller.single import SingleController
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.store import MetadataStore
from tidelog.metadata.tree import Operation, Result


def test_however_many_they_are_the_tree_is_changed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def made() -> None:
        async with running(tmp_path) as controller:
            topics = [NewTopic(f"t{number}", 100, 1) for number in range(20)]
            assert all(result.error is None for result in await controller.create_topics(topics))

    async def crashed() -> tuple[RecordingHost, int]:
        clock, host, changes = ManualClock(), RecordingHost(), 0
        with EmbeddedTree(tmp_path / FILE_NAME, clock) as tree:
            controller = SingleController(MetadataStore(tree, clock), BROKER, FewRules(), clock=clock)
            state = await controller.load()
            keys = [(name, index) for name, topic in state.topics.items() for index in topic.partitions]
            original = tree.multi

            def counted(operations: Sequence[Operation]) -> list[Result]:
                nonlocal changes
                changes += 1
                return original(operations)

            monkeypatch.setattr(tree, "multi", counted)
            await controller.raise_leader_epochs([*keys[:-1], ("not in the tree", 0)])
            monkeypatch.undo()
            await controller.register(ADDRESS)
            await controller.activate(host)
            await controller.close()
        return host, changes

    async def after() -> RecordingHost:
        host = RecordingHost()
        async with running(tmp_path, host):
            return host

    asyncio.run(made())
    host, changes = asyncio.run(crashed())
    assert changes == 1
    epochs = [state.leader_epoch for state in host.leads.values()]
    assert sorted(epochs) == [0] + [1] * 1999
    again = asyncio.run(after())
    assert {key: state.leader_epoch for key, state in again.leads.items()} == {
        key: state.leader_epoch for key, state in host.leads.items()
    }


def test_a_start_after_a_clean_stop_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> int:
        async with running(tmp_path) as controller:
            if "t" not in controller.state.topics:
                await controller.create_topics([NewTopic("t", 1, 1)])
            monkeypatch.setattr(MetadataStore, "_change", None)
            await controller.raise_leader_epochs([])
            monkeypatch.undo()
            return controller.state.topics["t"].partitions[0].leader_epoch

    assert [asyncio.run(start()) for _ in range(2)] == [0, 0]
