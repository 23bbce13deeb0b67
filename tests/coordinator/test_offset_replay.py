"""Whatever happens to offsets, a coordinator that starts now has what the live one has."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.coordinator.offsets_stage import OffsetsStage, committed, same
from tests.support.scale import scale
from tidelog.coordinator.group.offsets import Offsets
from tidelog.coordinator.group.records import offset_key, offset_value, read_offset_value
from tidelog.partitions import PartitionKey

GROUPS = ("a", "b", "c")
NAMES: tuple[PartitionKey, ...] = (("orders", 0), ("orders", 1), ("payments", 0))
PRODUCERS = (7, 8, 9)
Key = tuple[str, PartitionKey]


@dataclass
class Model:
    """What should be committed: the newest record of each offset among those that hold."""

    # For each offset, which records hold: their place in the log and the offset that they commit.
    held: dict[Key, tuple[int, int]] = field(default_factory=dict)
    open: dict[int, dict[Key, tuple[int, int]]] = field(default_factory=dict)
    clock: int = 0

    def commit(self, key: Key, offset: int) -> None:
        self.clock += 1
        self._hold(key, self.clock, offset)

    def _hold(self, key: Key, place: int, offset: int) -> None:
        if key not in self.held or self.held[key][0] < place:
            self.held[key] = (place, offset)

    def commit_in_transaction(self, producer: int, key: Key, offset: int) -> None:
        self.clock += 1
        self.open.setdefault(producer, {})[key] = (self.clock, offset)

    def end(self, producer: int, *, commit: bool) -> None:
        for key, (place, offset) in self.open.pop(producer, {}).items():
            if commit:
                self._hold(key, place, offset)

    def delete(self, key: Key) -> None:
        self.held.pop(key, None)
        for pending in self.open.values():
            pending.pop(key, None)

    def forget_expired(self, offsets: Offsets) -> None:
        """What expired is gone; that the right ones did is held elsewhere."""
        live = committed(offsets)
        self.held = {key: held for key, held in self.held.items() if key in live}


def one_step(stage: OffsetsStage, model: Model, chance: random.Random, number: int) -> None:
    group, name = key = chance.choice(GROUPS), chance.choice(NAMES)
    producer = chance.choice(PRODUCERS)
    kind = chance.choices(("commit", "transaction", "end", "delete", "topic", "time"), (8, 8, 4, 2, 1, 1))[0]
    if kind == "commit":
        retention = chance.choice((-1, -1, 60_000))
        assert stage.commit(group, *name, number, retention_ms=retention, version=4) == 0
        model.commit(key, number)
    elif kind == "transaction":
        assert stage.commit_in_transaction(producer, group, *name, number) == 0
        model.commit_in_transaction(producer, key, number)
    elif kind == "end":
        commit = chance.random() < 0.6
        stage.end(producer, commit=commit)
        model.end(producer, commit=commit)
    elif kind == "delete":
        answer = stage.delete(group, **{name[0]: [name[1]]})
        if answer.error_code == 0:
            model.delete(key)
    elif kind == "topic":
        stage.service.topics_deleted([("orders", stage.metadata.snapshot.topics["orders"].topic_id)])
        stage.world.advance()
        for each in GROUPS:
            model.delete((each, ("orders", 0)))
            model.delete((each, ("orders", 1)))
    else:
        stage.world.advance(chance.choice((30.0, 120.0, 900.0)))
        stage.service.expire()
        stage.world.advance()
        model.forget_expired(stage.offsets)


@pytest.mark.parametrize("seed", range(scale(12, 300)))
def test_the_live_state_is_that_after_a_restart(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    stage = OffsetsStage(tmp_path / "data")
    stage.values["offsets.retention.minutes"] = 10
    model = Model()
    keys = [(group, name) for group in GROUPS for name in NAMES]
    for number in range(80):
        one_step(stage, model, chance, number)
        live = stage.offsets
        found = {key: read_offset_value(value).offset for key, value in committed(live).items()}
        assert found == {key: offset for key, (_, offset) in model.held.items()}
        unstable = {key for pending in model.open.values() for key in pending}
        assert {key for key in keys if live.is_pending(*key)} == unstable
        if number % 5 == 4:
            assert same(stage.loaded_anew().offsets, live, keys)


def test_a_thousand_groups_share_the_names_of_partitions() -> None:
    offsets = Offsets(set(), lambda _: None)
    value = offset_value(1, -1, "", 5, topic_id=b"i" * 16)
    for number in range(1000):
        key = offset_key(f"group-{number}", "".join(("or", "ders")), 1000)
        offsets.replay(1, key, value, offset=number, timestamp=0, producer_id=-1, producer_epoch=-1)
    names = {id(name) for group in offsets.group_ids for name in offsets.of_group(group)}
    assert (offsets.count, len(names)) == (1000, 1)
    offsets.unload()
    assert (offsets.count, list(offsets.group_ids)) == (0, [])
