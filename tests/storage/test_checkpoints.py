"""Kafka's small files are written as Kafka writes them, and a damaged one says what is wrong with it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simdisk import SimulatedDisk
from tidelog.storage.checkpoints import (
    CorruptCheckpoint,
    MetaProperties,
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)
from tidelog.storage.leader_epoch_file_cache import LeaderEpochFileCache


def test_offsets() -> None:
    offsets = {("plain", 1): 1000, ("__consumer_offsets", 0): 30}
    assert encode_offsets(offsets) == b"0\n2\nplain 1 1000\n__consumer_offsets 0 30\n"
    assert decode_offsets("path", encode_offsets(offsets)) == offsets
    assert encode_offsets({}) == b"0\n0\n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0",
        b"0\n",
        b"1\n0\n",
        b"x\n0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na b c\n",
        b"0\n0\na 0 1\n",
    ],
)
def test_damaged_checkpoints_are_named(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match="somewhere"):
        decode_offsets("somewhere", data)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_else_happens(data: bytes) -> None:
    for decode in (decode_offsets, decode_epochs, decode_partition_metadata, decode_meta_properties):
        try:
            decode("path", data)
        except (CorruptCheckpoint, UnicodeDecodeError):
            pass
    decode_clean_shutdown(data)


def test_epochs_file() -> None:
    assert encode_epochs([(0, 0), (3, 120)]) == b"0\n2\n0 0\n3 120\n"
    assert decode_epochs("path", b"0\n2\n0 0\n3 120\n") == [(0, 0), (3, 120)]


def test_partition_metadata() -> None:
    data = b"version: 0\ntopic_id: YqSCZPOoS7KJcXmvp8l7ug"
    assert encode_partition_metadata(decode_partition_metadata("path", data)) == data
    for damaged in (b"", b"version: 1\ntopic_id: YqSCZPOoS7KJcXmvp8l7ug", b"version: 0\ntopic_id: short"):
        with pytest.raises(CorruptCheckpoint):
            decode_partition_metadata("path", damaged)


def test_clean_shutdown_marker() -> None:
    assert encode_clean_shutdown() == b'{"version":0,"brokerEpoch":-1}'
    assert decode_clean_shutdown(encode_clean_shutdown(17)) == 17
    assert decode_clean_shutdown(b"") == -1


def test_meta_properties_of_both_versions() -> None:
    old = decode_meta_properties("path", b"#\n#Sun Nov 15\nbroker.id=4\nversion=0\ncluster.id=abc\n")
    assert old == MetaProperties(0, "abc", 4, None)
    new = decode_meta_properties("path", b"node.id=4\nversion=1\ncluster.id=abc\ndirectory.id=xyz\n")
    assert new == MetaProperties(1, "abc", 4, "xyz")
    for meta in (old, new):
        assert decode_meta_properties("path", encode_meta_properties(meta, "today")) == meta
    for damaged in (b"broker.id=x\n", b"version=9\n"):
        with pytest.raises(CorruptCheckpoint):
            decode_meta_properties("path", damaged)


# -- leader epochs


@pytest.fixture
def epochs() -> LeaderEpochFileCache:
    disk = SimulatedDisk()
    disk.make_dir("/log")
    found = LeaderEpochFileCache(disk, "/log")
    for epoch, start in ((1, 0), (2, 10), (5, 30)):
        found.assign(epoch, start)
    return found


def test_where_an_epoch_ended(epochs: LeaderEpochFileCache) -> None:
    answers = {epoch: epochs.end_offset_for(epoch, 50) for epoch in (-1, 0, 1, 2, 3, 4, 5, 6)}
    assert answers == {
        -1: (-1, -1),
        0: (0, 0),
        1: (1, 10),
        2: (2, 30),
        3: (2, 30),
        4: (2, 30),
        5: (5, 50),
        6: (-1, -1),
    }


def test_which_epoch_an_offset_is_of(epochs: LeaderEpochFileCache) -> None:
    assert [epochs.epoch_for_offset(offset) for offset in (0, 9, 10, 29, 30, 99)] == [1, 1, 2, 2, 5, 5]


def test_epochs_are_cut_with_the_log(epochs: LeaderEpochFileCache) -> None:
    epochs.truncate_from_end(30)
    assert epochs.entries() == [(1, 0), (2, 10)]
    epochs.truncate_from_start(5)
    assert epochs.entries() == [(1, 5), (2, 10)]
    epochs.truncate_from_start(20)
    assert epochs.entries() == [(2, 20)]
    epochs.truncate_from_start(20)
    assert epochs.entries() == [(2, 20)]


def test_an_epoch_takes_the_place_of_entries_that_contradict_it(epochs: LeaderEpochFileCache) -> None:
    epochs.assign(3, 40)
    epochs.assign(5, 44)
    assert epochs.entries() == [(1, 0), (2, 10), (5, 30)]
    epochs.assign(6, 10)
    assert epochs.entries() == [(1, 0), (6, 10)]


def test_epochs_survive_in_their_file(epochs: LeaderEpochFileCache) -> None:
    epochs.save()
    again = LeaderEpochFileCache(epochs._disk, "/log")
    again.load()
    assert again.entries() == epochs.entries()
    assert again.encoded_if_changed() is None
