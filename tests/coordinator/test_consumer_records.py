"""Records of consumer groups are Kafka's, to the byte."""

from __future__ import annotations

import pytest

from tidelog.coordinator.group.consumer_events import (
    ClassicMember,
    CurrentAssignment,
    CurrentEvent,
    EpochEvent,
    Event,
    MemberEvent,
    MemberMetadata,
    MemberState,
    PartitionMetadataEvent,
    PatternEvent,
    ResolvedPattern,
    TargetEpochEvent,
    TargetEvent,
)
from tidelog.coordinator.group.consumer_records import decode, encode
from tidelog.protocol.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
)

A = bytes.fromhex("73d5b130596a4aceaac17cd460a756d8")
B = bytes.fromhex("3e74dde9951b4ae79f155365c4a78589")
SUBSCRIPTION = bytes.fromhex("0001000000010006733530343337ffffffff00000000")

# Key and value as Kafka 4.3.1 wrote them, and what its kafka-dump-log says of them.
WRITTEN_BY_KAFKA: list[tuple[str, str | None, str, Event]] = [
    ("00030003726731", "00000000000201000896801079dd210140", "rg1", EpochEvent(2, -7602058055414382272)),
    (
        "00050003726731000142",
        "000000000670726f62650b2f3132372e302e302e31020572792d610672782d2e2a000075300001000100",
        "rg1",
        MemberEvent(
            "B",
            MemberMetadata(
                client_id="probe",
                client_host="/127.0.0.1",
                topics=frozenset({"ry-a"}),
                pattern="rx-.*",
                rebalance_timeout_ms=30_000,
            ),
        ),
    ),
    (
        "000500026d7800164a523254526e325054525372757568426544576a6277",
        "000000000670726f62650b2f3132372e302e302e3102077335303433370100002710000100250100002710020672616e6765"
        "170001000000010006733530343337ffffffff000000000000",
        "mx",
        MemberEvent(
            "JR2TRn2PTRSruuhBeDWjbw",
            MemberMetadata(
                client_id="probe",
                client_host="/127.0.0.1",
                topics=frozenset({"s50437"}),
                rebalance_timeout_ms=10_000,
                classic=ClassicMember(10_000, (("range", SUBSCRIPTION),)),
            ),
        ),
    ),
    ("00060003726731", "000000000002010008000001a1df65cc54", "rg1", TargetEpochEvent(2, 1794749353044)),
    (
        "00070003726731000141",
        "0000033e74dde9951b4ae79f155365c4a78589040000000000000001000000020073d5b130596a4aceaac17cd460a756d803"
        "00000000000000010000",
        "rg1",
        TargetEvent("A", {B: frozenset({0, 1, 2}), A: frozenset({0, 1})}),
    ),
    (
        "00080003726731000141",
        "00000000000200000001000373d5b130596a4aceaac17cd460a756d80300000000000000010100090300000002000000023e"
        "74dde9951b4ae79f155365c4a785890400000000000000010000000201000d040000000200000002000000020100",
        "rg1",
        CurrentEvent("A", CurrentAssignment(2, 1, assigned={A: {0: 2, 1: 2}, B: {0: 2, 1: 2, 2: 2}})),
    ),
    (
        "00100003726731000572782d2e2a",
        "0000030572782d610572782d620000000000000141000001a1df65cb1a00",
        "rg1",
        PatternEvent("rx-.*", ResolvedPattern(frozenset({"rx-a", "rx-b"}), 321, 1794749352730)),
    ),
    ("00080003726731000141", None, "rg1", CurrentEvent("A", None)),
    ("00070003726731000141", None, "rg1", TargetEvent("A", None)),
    ("00050003726731000141", None, "rg1", MemberEvent("A", None)),
    ("00100003726731000572782d2e2a", None, "rg1", PatternEvent("rx-.*", None)),
    ("00060003726731", None, "rg1", TargetEpochEvent(None)),
    ("00040003726731", None, "rg1", PartitionMetadataEvent(False)),
    ("00030003726731", None, "rg1", EpochEvent(None)),
]


@pytest.mark.parametrize(("key", "value", "group_id", "event"), WRITTEN_BY_KAFKA)
def test_what_kafka_wrote_is_read_and_written_again(
    key: str, value: str | None, group_id: str, event: Event
) -> None:
    data = None if value is None else bytes.fromhex(value)
    record_type = int(key[:4], 16)
    assert decode(record_type, bytes.fromhex(key), data) == (group_id, event)
    assert encode(group_id, event) == (bytes.fromhex(key), data)


def test_members_of_before_assignment_epochs_have_had_their_partitions_since_their_own_epoch() -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=7,
        previous_member_epoch=6,
        state=1,
        assigned_partitions=[
            ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(topic_id=A, partitions=[0, 3])
        ],
    )
    key = encode("g", CurrentEvent("m", None)).key
    _, event = decode(8, key, b"\0\0" + value.encode(0))
    assert event == CurrentEvent(
        "m", CurrentAssignment(7, 6, MemberState.UNREVOKED_PARTITIONS, {A: {0: 7, 3: 7}})
    )


def test_a_state_of_a_later_version_is_kept_as_unknown() -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(member_epoch=7, previous_member_epoch=6, state=9)
    key = encode("g", CurrentEvent("m", None)).key
    assert decode(8, key, b"\0\0" + value.encode(0))[1] == CurrentEvent(
        "m", CurrentAssignment(7, 6, MemberState.UNKNOWN)
    )


def test_that_a_member_is_not_a_classic_one_is_said_and_not_left_out() -> None:
    """Kafka reads a record without it as one of a classic member with an empty session."""
    record = encode("g", MemberEvent("m", MemberMetadata(client_id="c")))
    assert record.value is not None
    assert record.value.endswith(b"\x01\x00\x01\x00")
    assert ConsumerGroupMemberMetadataValue.decode(record.value[2:], 0).classic_member_metadata is None


def test_the_partitions_that_older_coordinators_wrote_down_are_noticed() -> None:
    key = encode("g", PartitionMetadataEvent(False)).key
    assert decode(4, key, b"\0\0\x01\0") == ("g", PartitionMetadataEvent(True))
