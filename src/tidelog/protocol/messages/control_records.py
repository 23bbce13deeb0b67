"""Control records: ends of transactions, and what Kafka's metadata log and snapshots mark."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string, struct, uint16, uuid


class ControlRecordTypeSchema(Message, versions="0", flexible="none"):
    type: int = int16("0+")


class EndTxnMarker(Message, versions="0", flexible="none"):
    coordinator_epoch: int = int32("0+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    class Voter(Struct):
        voter_id: int = int32("0+")
        voter_directory_id: bytes = uuid("1+")

    version: int = int16("0+")
    leader_id: int = int32("0+")
    voters: list[LeaderChangeMessage.Voter] = array("0+")
    granting_voters: list[LeaderChangeMessage.Voter] = array("0+")


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    version: int = int16("0+")
    last_contained_log_timestamp: int = int64("0+")


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    version: int = int16("0+")


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    version: int = int16("0+")
    kraft_version: int = int16("0+", json="kRaftVersion")


class VotersRecord(Message, versions="0", flexible="0+"):
    class Endpoint(Struct):
        name: str = string("0+")
        host: str = string("0+")
        port: int = uint16("0+")

    class KRaftVersionFeature(Struct):
        min_supported_version: int = int16("0+")
        max_supported_version: int = int16("0+")

    class Voter(Struct):
        voter_id: int = int32("0+")
        voter_directory_id: bytes = uuid("0+")
        endpoints: list[VotersRecord.Endpoint] = array("0+")
        kraft_version_feature: VotersRecord.KRaftVersionFeature = struct("0+", json="kRaftVersionFeature")

    version: int = int16("0+")
    voters: list[VotersRecord.Voter] = array("0+")
