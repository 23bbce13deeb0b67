"""How messages behave in the hands of the broker: constructors, versions, unknown tags, parts of files."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tidelog.protocol import (
    ZERO_UUID,
    ProtocolError,
    decoder_for,
    encode_parts,
    encoder_for,
    uuid_from_text,
    uuid_to_text,
)
from tidelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from tidelog.protocol.messages.api_versions import ApiVersionsRequest
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse


@dataclass(slots=True)
class Slice:
    size: int


def produce(records: bytes | bytearray | memoryview | None) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=3, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    return ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic])


def fetched(*records: bytes | Slice | None) -> FetchResponse:
    partitions = [FetchResponse.PartitionData(partition_index=i, records=r) for i, r in enumerate(records)]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)])


def test_fields_not_given_have_kafkas_defaults() -> None:
    partition = ProduceResponse.PartitionProduceResponse(index=1)
    assert (partition.index, partition.base_offset, partition.log_append_time_ms) == (1, 0, -1)
    assert (partition.error_message, partition.record_errors, partition.current_leader) == (None, [], None)
    assert FetchRequest().max_bytes == 0x7FFFFFFF
    assert MetadataRequest().allow_auto_topic_creation is True
    assert MetadataResponse.MetadataResponseTopic().topic_id == ZERO_UUID


def test_two_messages_never_share_a_list() -> None:
    first, second = MetadataResponse(), MetadataResponse()
    first.topics.append(MetadataResponse.MetadataResponseTopic())
    assert second.topics == []


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match="topicz"):
        MetadataResponse(topicz=[])  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        MetadataResponse().topicz = []  # type: ignore[attr-defined]


def test_messages_are_compared_by_value_and_shown_with_their_names() -> None:
    assert produce(b"x") == produce(bytearray(b"x"))
    assert produce(b"x") != produce(b"y")
    assert produce(b"x") != ProduceResponse()
    assert "acks=1" in repr(produce(b"x"))


def test_a_version_that_a_message_does_not_have_is_refused() -> None:
    with pytest.raises(ProtocolError, match="ProduceRequest has versions 3 to 13, not 2"):
        ProduceRequest.decode(b"", 2)
    with pytest.raises(ProtocolError, match="not 14"):
        produce(b"").encode(14)


def test_records_are_read_as_a_view_of_the_input() -> None:
    frame = bytearray(produce(b"batch").encode(9))
    request = ProduceRequest.decode(frame, 9)
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    position = frame.index(b"batch")
    records[0:1] = b"B"
    assert frame[position : position + 5] == b"Batch"


@pytest.mark.parametrize("version", range(3, 14))
def test_records_of_any_kind_of_buffer_are_written(version: int) -> None:
    expected = produce(b"batch").encode(version)
    assert produce(bytearray(b"batch")).encode(version) == expected
    assert produce(memoryview(b"-batch-")[1:6]).encode(version) == expected


@pytest.mark.parametrize("version", range(4, 19))
def test_a_part_of_a_file_stays_a_part_of_its_own(version: int) -> None:
    first, second = Slice(5), Slice(300)
    parts = encode_parts(fetched(first, None, second, b"tail"), version, b"header")
    assert [part for part in parts if isinstance(part, Slice)] == [first, second]
    assert isinstance(parts[0], bytes)
    assert parts[0].startswith(b"header")
    filled = b"".join(part if isinstance(part, bytes) else b"x" * part.size for part in parts)
    assert filled == b"header" + fetched(b"x" * 5, None, b"x" * 300, b"tail").encode(version)


def test_an_empty_part_of_a_file_is_left_out() -> None:
    assert encode_parts(fetched(Slice(0)), 12) == [fetched(b"").encode(12)]


def test_a_part_of_a_file_needs_a_list_of_parts() -> None:
    with pytest.raises(ProtocolError, match=r"responses\[0\]\.partitions\[0\]\.records is a part of a file"):
        fetched(Slice(5)).encode(12)


def test_unknown_tags_are_kept_and_written_back() -> None:
    request = HeartbeatRequest(group_id="g", member_id="m", unknown_tags={7: b"seven", 300: b""})
    again = HeartbeatRequest.decode(request.encode(4), 4)
    assert again.unknown_tags == {7: b"seven", 300: b""}
    assert again.encode(4) == request.encode(4)


def test_unknown_tags_stand_among_the_known_ones_in_order() -> None:
    request = FetchRequest(cluster_id="c", unknown_tags={1: b"x", 9: b"y"})
    assert request.encode(12).endswith(b"\x03\x00\x02\x02c\x01\x01x\x09\x01y")


def test_a_tagged_struct_that_was_not_sent_is_none() -> None:
    plain = ProduceResponse.PartitionProduceResponse()
    led = ProduceResponse.PartitionProduceResponse(
        current_leader=ProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=5)
    )
    topic = ProduceResponse.TopicProduceResponse(name="t", partition_responses=[plain, led])
    read = ProduceResponse.decode(ProduceResponse(responses=[topic]).encode(10), 10)
    first, second = read.responses[0].partition_responses
    assert first.current_leader is None
    assert second.current_leader == ProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=5)


def test_a_nullable_struct_is_none_or_there() -> None:
    for assignment in (None, ConsumerGroupHeartbeatResponse.Assignment()):
        answer = ConsumerGroupHeartbeatResponse(member_id="m", assignment=assignment)
        assert ConsumerGroupHeartbeatResponse.decode(answer.encode(0), 0).assignment == assignment


def test_a_field_that_a_version_lacks_is_left_out_when_ignorable() -> None:
    request = FetchRequest(rack_id="r1")
    assert FetchRequest.decode(request.encode(4), 4).rack_id == ""


def test_a_field_that_a_version_lacks_is_refused_when_that_would_change_the_meaning() -> None:
    with pytest.raises(
        ProtocolError, match="HeartbeatRequest v2 has no group_instance_id, which is set to 'i'"
    ):
        HeartbeatRequest(group_instance_id="i").encode(2)
    with pytest.raises(ProtocolError, match="has no transactions"):
        AddPartitionsToTxnRequest(
            transactions=[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction()]
        ).encode(3)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (FetchRequest(max_wait_ms=2**31), "max_wait_ms is 2147483648; int32 is expected"),
        (ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="x" * 40_000)]), "topic_data"),
        (ApiVersionsRequest(client_software_name=None), "client_software_name is None"),  # type: ignore[arg-type]
        (MetadataRequest(topics="t"), "topics is 't'; a list is expected"),  # type: ignore[arg-type]
        (MetadataRequest(topics=["t"]), r"topics\[0\] is 't'; MetadataRequest.MetadataRequestTopic"),  # type: ignore[list-item]
        (ApiVersionsRequest(client_software_name=5), "a string is expected"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_does_not_fit_is_named(
    request_: FetchRequest | ProduceRequest | ApiVersionsRequest | MetadataRequest, message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        request_.encode(4 if isinstance(request_, FetchRequest | ProduceRequest) else 3)


def test_readers_and_writers_are_made_once() -> None:
    assert decoder_for(ProduceRequest, 9) is decoder_for(ProduceRequest, 9)
    assert encoder_for(ProduceRequest, 9) is encoder_for(ProduceRequest, 9)
    assert decoder_for(ProduceRequest, 9) is not decoder_for(ProduceRequest, 8)


def test_uuids_are_shown_as_kafka_shows_them() -> None:
    uuid = uuid_from_text("XkM_bLDhKUG-Ujh6xAxNVg")
    assert len(uuid) == 16
    assert uuid_to_text(uuid) == "XkM_bLDhKUG-Ujh6xAxNVg"
    assert uuid_to_text(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    for wrong in ("", "abc", "XkM_bLDhKUG-Ujh6xAxNVgAA", "é" * 22):
        with pytest.raises(ProtocolError):
            uuid_from_text(wrong)
    with pytest.raises(ProtocolError, match="16 bytes, not 3"):
        uuid_to_text(b"abc")
