"""The file with the ZooKeeper session of a broker names the present session, also after its disk was full."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
from pathlib import Path

import pytest

from tests.metadata.trees import run
from tests.support.virtual_loop import VirtualLoop
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.server.session_file import AGAIN_SECONDS, FILE_NAME, SessionFile


def test_a_session_is_noted_when_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = False
    attempts = 0
    opens = os.open

    def fail(path: str | Path, *arguments: int) -> int:
        nonlocal attempts
        if str(path).startswith(str(tmp_path)):
            attempts += 1
            if is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opens(path, *arguments)

    async def story() -> None:
        nonlocal is_full
        server = SimulatedZooKeeper(asyncio.get_running_loop(), random.Random(1))
        first = await SimulatedTree.open(server, "first", rng=random.Random(1))
        second = await SimulatedTree.open(server, "second", rng=random.Random(2))
        noted = SessionFile(str(tmp_path))

        def session() -> int:
            return int(json.loads((tmp_path / FILE_NAME).read_text())["id"])

        noted.write(first)
        assert session() == first.session_id
        is_full = True
        noted.write(second)
        await asyncio.sleep(5 * AGAIN_SECONDS)
        assert session() == first.session_id
        is_full = False
        await asyncio.sleep(2 * AGAIN_SECONDS)
        assert session() == second.session_id
        is_full = True
        noted.write(second)
        await second.close()
        is_full = False
        before = attempts
        await asyncio.sleep(5 * AGAIN_SECONDS)
        assert attempts == before, "the folder may belong to another process by now"
        await first.close()

    monkeypatch.setattr(os, "open", fail)
    run(VirtualLoop, story)
