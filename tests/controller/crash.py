"""Kills controllers at random moments of their work and looks at what is left. Run as a program of its own.

    python -m tests.controller.crash FOLDER ROUNDS SEED

Each round forks a process that makes, grows, changes and deletes topics, telling through a pipe what it
is about to do and what was acknowledged; it is killed (SIGKILL) at a random moment. Then the tree is opened
again: it has to be whole, and to hold every acknowledged change. Prints what was survived as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.controller.hosts import ADDRESS, BROKER, FewRules
from tidelog.controller.interface import (
    ConfigEntity,
    ConfigKind,
    LogsOfTopic,
    NewPartitions,
    NewTopic,
    TopicToDelete,
)
from tidelog.controller.single import SingleController
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.state import ClusterState, PartitionState
from tidelog.metadata.store import MetadataStore
from tidelog.metadata.tree import walk


class FolderHost:
    """Keeps a folder for each partition, as a log would be."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)

    async def make_logs(self, topics: Sequence[LogsOfTopic]) -> set[tuple[str, int]]:
        def make() -> None:
            for topic, topic_id, partitions in topics:
                for partition in partitions:
                    (self.root / f"{topic}-{partition}.{topic_id.hex()}").mkdir(exist_ok=True)

        await asyncio.to_thread(make)
        return set()

    def become_leader(self, topic: str, topic_id: bytes, partition: int, state: PartitionState) -> None:
        assert (self.root / f"{topic}-{partition}.{topic_id.hex()}").is_dir()

    def delete_partition(self, topic: str, partition: int) -> None:
        for folder in self.root.glob(f"{topic}-{partition}.*"):
            folder.rmdir()

    async def sync_deletions(self) -> None:
        await asyncio.to_thread(time.sleep, 0)

    def update_topic_config(self, topic: str, overrides: dict[str, str]) -> None: ...

    def metadata_changed(self, state: ClusterState) -> None: ...


@dataclass
class Known:
    """What was acknowledged, and what may or may not have happened."""

    topics: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    producer_ids: int = 0
    open: tuple[str, ...] | None = None
    acknowledged: int = 0
    cut_short: int = 0

    def hear(self, line: str) -> None:
        kind, *words = line.split()
        if kind == "begin":
            self.open = tuple(words)
            return
        self.open = None
        self.acknowledged += 1
        match words:
            case ["create", name, topic_id, partitions, value]:
                self.topics[name] = topic_id, int(partitions), value
            case ["grow", name, partitions]:
                self.topics[name] = self.topics[name][0], int(partitions), self.topics[name][2]
            case ["config", name, value]:
                self.topics[name] = (*self.topics[name][:2], value)
            case ["delete", name]:
                del self.topics[name]
            case ["producer", first]:
                assert int(first) >= self.producer_ids, "ids were given twice"
                self.producer_ids = int(first) + 1000


async def work(folder: Path, pipe: int, seed: int) -> None:
    """Change topics until killed."""
    rng = random.Random(seed)

    def say(*words: object) -> None:
        os.write(pipe, (" ".join(map(str, words)) + "\n").encode())

    store = MetadataStore(EmbeddedTree(folder / FILE_NAME))
    controller = SingleController(store, BROKER, FewRules())
    await controller.load()
    await controller.register(ADDRESS)
    await controller.activate(FolderHost(folder / "logs"))
    while True:
        names = sorted(controller.state.topics)
        name = rng.choice(names) if names else ""
        match rng.choice(["create"] * 3 + ["grow", "config", "producer"] + ["delete"] * (len(names) > 5)):
            case "create":
                name, value = f"t{rng.randrange(10**12)}", str(rng.randrange(1000))
                say("begin", "create", name)
                topic = NewTopic(name, rng.randint(1, 12), 1, configs=[("retention.ms", value)])
                (result,) = await controller.create_topics([topic])
                assert result.error is None
                say("done", "create", name, result.topic_id.hex(), result.num_partitions, value)
            case "grow" if name:
                count = len(controller.state.topics[name].partitions) + rng.randint(1, 5)
                say("begin", "grow", name, count)
                (grown,) = await controller.create_partitions([NewPartitions(name, count)])
                assert grown.error is None
                say("done", "grow", name, count)
            case "config" if name:
                value = str(rng.randrange(1000, 2000))
                say("begin", "config", name, value)
                await controller.alter_configs(
                    ConfigEntity(ConfigKind.TOPIC, name), [("retention.ms", value)]
                )
                say("done", "config", name, value)
            case "delete":
                say("begin", "delete", name)
                (deleted,) = await controller.delete_topics([TopicToDelete(name)])
                assert deleted.error is None
                say("done", "delete", name)
            case "producer":
                say("begin", "producer")
                say("done", "producer", (await controller.allocate_producer_ids()).start)


def kill_one(folder: Path, known: Known, rng: random.Random) -> None:
    read_end, write_end = os.pipe()
    seed = rng.randrange(2**32)
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            asyncio.run(work(folder, write_end, seed))
        finally:
            os._exit(1)
    os.close(write_end)
    # Most kills hit while topics change; some already while the tree is opened and read.
    wanted = rng.choice([0, rng.randint(1, 30)])
    text = b""
    while text.count(b"\n") < wanted:
        more = os.read(read_end, 4096)
        assert more, "the controller failed before it was killed"
        text += more
    # The seed chooses the moment of the kill: nothing is waited for.
    time.sleep(rng.uniform(0, 0.004 if wanted else 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(read_end, "rb") as rest:
        text += rest.read()
    for line in text.decode().splitlines(keepends=True):
        if line.endswith("\n"):
            known.hear(line)
    known.cut_short += known.open is not None


def check_tree(folder: Path, known: Known) -> None:
    """The tree as the dead process left it, before anything is put right."""
    with EmbeddedTree(folder / FILE_NAME) as tree:
        store = MetadataStore(tree)
        assert all(stat.ephemeral_owner == 0 for _, _, stat in walk(tree)), (
            "a dead process is still registered"
        )
        if tree.exists("/brokers/topics") is None:
            assert not known.topics
            return
        topics = store.read_topics()
        marked = store.marked_for_deletion()
        assert set(marked) <= set(topics)
        if tree.exists("/config/topics"):
            assert tree.children("/config/topics") == sorted(topics), "settings and topics belong together"
        for name, topic in topics.items():
            assert sorted(topic.partitions) == list(range(len(topic.partitions)))
            assert len(tree.children(f"/brokers/topics/{name}/partitions")) == len(topic.partitions)
            for partition in topic.partitions.values():
                assert (partition.leader, partition.isr, partition.partition_epoch) == (BROKER, [BROKER], 0)
        check_acknowledged(
            known,
            {
                name: (t.topic_id.hex(), len(t.partitions), t.configs["retention.ms"])
                for name, t in topics.items()
            },
        )


def check_acknowledged(known: Known, found: dict[str, tuple[str, int, str]]) -> None:
    """What was acknowledged is there; the one change that was under way may be, whole."""
    match known.open:
        case ("create", name) if name in found:
            known.topics[name] = found[name]
        case ("grow", name, count) if found[name][1] == int(count):
            known.topics[name] = found[name]
        case ("config", name, value) if found[name][2] == value:
            known.topics[name] = found[name]
        case ("delete", name) if name not in found:
            del known.topics[name]
    known_but_lost = {name for name in known.topics if found.get(name) != known.topics[name]}
    assert not known_but_lost, f"acknowledged, then lost: {known_but_lost}"
    assert found.keys() == known.topics.keys(), "there are topics that nobody asked for"


async def start_again(folder: Path, known: Known) -> None:
    """The next start finishes what was begun: every partition has its folder, and no folder is left over."""
    host = FolderHost(folder / "logs")
    with EmbeddedTree(folder / FILE_NAME) as tree:
        store = MetadataStore(tree)
        controller = SingleController(store, BROKER, FewRules())
        state = await controller.load()
        await controller.register(ADDRESS)
        await controller.activate(host)
        await controller.close()
        assert store.marked_for_deletion() == []
        expected = {
            f"{name}-{n}.{topic.topic_id.hex()}"
            for name, topic in state.topics.items()
            for n in topic.partitions
        }
        assert {path.name for path in host.root.iterdir()} == expected
        gone = known.topics.keys() - state.topics.keys()
        assert gone <= {known.open[1] if known.open and known.open[0] == "delete" else None}
        known.topics = {name: known.topics[name] for name in state.topics}
    known.open = None


def main(folder: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    known = Known()
    for _ in range(rounds):
        kill_one(folder, known, rng)
        check_tree(folder, known)
        asyncio.run(start_again(folder, known))
    print(json.dumps({"acknowledged": known.acknowledged, "cut_short": known.cut_short}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
