"""Plays the recorded requests to a broker, one after the other, as they were played to Kafka.

What the recording needed and does not hold is filled in: requests that got no answer, and the waiting
until a new topic can be used and an ended transaction is over.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import crc32c

from tests.behaviour.compare import Differences
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.wait import eventually
from tidelog.protocol.json import Json
from tidelog.protocol.message import Message

RECORDING = Path(__file__).parent.parent / "data" / "behaviour.jsonl.gz"
CLIENT_ID = "golden"  # member ids and descriptions of groups show it
ANSWER_SECONDS = 15.0
# A coordinator that is loading, not known or not there yet; a transaction that is being ended.
NOT_READY = {14, 15, 16, 51}

Object = dict[str, Json]


@dataclass(slots=True)
class Case:
    name: str
    api: str
    version: int
    request: Object
    response: Object
    save: dict[str, list[str | int]] = field(default_factory=dict)
    producer: Object | None = None


@dataclass(slots=True)
class Played:
    """What came of a case: the live answer, and where it differs from Kafka's."""

    case: Case
    answer: Object
    differences: list[str]


def load_cases(path: Path = RECORDING) -> list[Case]:
    cases: list[Case] = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            cases.append(
                Case(
                    entry["case"],
                    entry["api"],
                    entry["version"],
                    entry["request"],
                    entry["response"],
                    entry.get("save", {}),
                    entry.get("producer"),
                )
            )
    return cases


# Requests that changed the broker and are not in the recording, by the case before which they were sent.
UNRECORDED: dict[str, tuple[str, int, Object]] = {
    "produce: acks 2": (
        "Produce",
        9,
        {
            "transactionalId": None,
            "acks": 0,
            "timeoutMs": 5000,
            "topicData": [
                {"name": "t1", "partitionData": [{"index": 2, "records": "(of case) produce: acks 2"}]}
            ],
        },
    ),
    "heartbeat: after leaving": (
        "LeaveGroup",
        5,
        {"groupId": "g1", "members": [{"memberId": "$m1", "groupInstanceId": None, "reason": None}]},
    ),
}


class Player:
    """Plays cases to one address; `deviates` says for which an answer other than Kafka's is no surprise."""

    def __init__(self, address: str, deviates: Callable[[Case], bool] = lambda _case: False) -> None:
        self._address = address
        self._deviates = deviates
        self._connection = RawConnection(address, client_id=CLIENT_ID, timeout=ANSWER_SECONDS)
        self._saved: dict[str, Json] = {}
        self._differences = Differences()

    def close(self) -> None:
        self._connection.close()

    def play(self, cases: list[Case]) -> Iterator[Played]:
        for case in cases:
            if case.name in UNRECORDED:
                self._send_unrecorded(case)
            yield self._play_one(case)

    def _play_one(self, case: Case) -> Played:
        request = self._filled_in(case)
        answer = self._ask_until_ready(case, request)
        differences = self._differences.between(case.response, answer, request)
        for name, path in case.save.items():
            found = _at(answer, path)
            # Where the answer has another shape, the recorded value lets the story go on to its end.
            self._saved[name] = _at(case.response, path) if found is None else found
        if "closed" not in answer and "no answer" not in answer:
            self._settle(case, request)
        return Played(case, answer, differences)

    def _ask_until_ready(self, case: Case, request: Object) -> Object:
        """Ask again while a coordinator is being made or loaded, as every client does."""
        if self._deviates(case):
            return self._ask(case.api, case.version, request)
        expected = set(_error_codes(case.response))
        answer: Object = {}

        def is_ready() -> bool:
            nonlocal answer
            answer = self._ask(case.api, case.version, request)
            return not (set(_error_codes(answer)) & NOT_READY - expected)

        with contextlib.suppress(AssertionError):  # never ready: the comparison reports what it said
            eventually(is_ready, case.name, ANSWER_SECONDS, interval=0.05)
        return answer

    def _ask(self, api: str, version: int, request: Object) -> Object:
        try:
            return self._connection.call_json(api, version, request)
        except ConnectionClosed:
            outcome: Object = {"closed": True}
        except NoAnswer:
            outcome = {"no answer": True}
        self._connection.close()
        self._connection = RawConnection(self._address, client_id=CLIENT_ID, timeout=ANSWER_SECONDS)
        return outcome

    def _send_unrecorded(self, case: Case) -> None:
        api, version, request = UNRECORDED[case.name]
        if api == "Produce":
            records = _records_of(case.request)
            _set_records(request, records)
            self._connection.send(_message(api, version, request), version)  # acks 0: nothing comes back
        else:
            self._ask(api, version, self._with_saved(request))

    def _filled_in(self, case: Case) -> Object:
        request = self._with_saved(case.request)
        if case.producer is not None:
            producer = self._with_saved(case.producer)
            _set_records(request, _as_producer(_records_of(request), producer))
        return request

    def _with_saved(self, value: Object) -> Object:
        filled = self._fill(value)
        assert isinstance(filled, dict)
        return filled

    def _fill(self, value: Json) -> Json:
        if isinstance(value, dict):
            return {name: self._fill(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._fill(item) for item in value]
        if isinstance(value, str) and value.startswith("$"):
            return self._saved[value[1:]]
        return value

    def _settle(self, case: Case, request: Object) -> None:
        """Wait until what a request began is done, where Kafka answers before that."""
        if case.api == "CreateTopics" and not request["validateOnly"]:
            self._wait_for_topics([str(topic["name"]) for topic in _succeeded(case, "topics")])
        elif case.api == "CreatePartitions":
            self._wait_for_topics([str(result["name"]) for result in _succeeded(case, "results")])
        elif case.name == "metadata: auto-created, first answer":
            self._wait_for_topics(["auto1"])
        elif case.api == "DeleteTopics":
            for result in _succeeded(case, "responses"):
                eventually(
                    lambda name=result["name"]: not self._partitions(name), f"{result['name']} is gone"
                )
        elif case.api == "EndTxn" or case.name == "txn: init while open (first answer)":
            self._wait_for_transaction(str(request["transactionalId"]))

    def _partitions(self, topic: Json) -> list[Object]:
        asked: Object = {"topics": [{"topicId": "A" * 22, "name": topic}], "allowAutoTopicCreation": False}
        (found,) = _objects(self._ask("Metadata", 12, asked).get("topics"))
        return _objects(found["partitions"]) if found["errorCode"] == 0 else []

    def _wait_for_topics(self, names: list[str]) -> None:
        """Until every partition has a leader that answers for it."""
        for name in names:
            eventually(lambda name=name: self._answers_for(name), f"topic {name} can be used")

    def _answers_for(self, topic: str) -> bool:
        partitions = self._partitions(topic)
        asked: Object = {
            "replicaId": -1,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partitionIndex": p["partitionIndex"], "currentLeaderEpoch": -1, "timestamp": -1}
                        for p in partitions
                    ],
                }
            ],
        }
        answer = self._ask("ListOffsets", 7, asked)
        (found,) = _objects(answer.get("topics")) or [{"partitions": [{"errorCode": 3}]}]
        return bool(partitions) and all(p["errorCode"] == 0 for p in _objects(found["partitions"]))

    def _wait_for_transaction(self, transactional_id: str) -> None:
        def is_over() -> bool:
            answer = self._ask("DescribeTransactions", 0, {"transactionalIds": [transactional_id]})
            states = _objects(answer.get("transactionStates"))
            return all(not str(state["transactionState"]).startswith("Prepare") for state in states)

        eventually(is_over, f"transaction {transactional_id} is over")


def _message(api: str, version: int, request: Object) -> Message:
    from tests.support.raw import message_class
    from tidelog.protocol.json import from_json

    return from_json(message_class(f"{api}Request"), version, request)


def _error_codes(value: Json) -> Iterator[int]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name in ("errorCode", "partitionErrorCode") and isinstance(item, int):
                yield item
            else:
                yield from _error_codes(item)
    elif isinstance(value, list):
        for item in value:
            yield from _error_codes(item)


def _objects(value: Json) -> list[Object]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _succeeded(case: Case, part: str) -> list[Object]:
    return [result for result in _objects(case.response[part]) if result["errorCode"] == 0]


def _at(answer: Json, path: list[str | int]) -> Json:
    """The value that a path leads to; None where the answer has another shape."""
    for step in path:
        if isinstance(answer, dict) and isinstance(step, str):
            answer = answer.get(step)
        elif isinstance(answer, list) and isinstance(step, int) and step < len(answer):
            answer = answer[step]
        else:
            return None
    return answer


def _records_of(request: Object) -> bytes:
    (topic,) = _objects(request["topicData"])
    (partition,) = _objects(topic["partitionData"])
    return base64.b64decode(str(partition["records"]))


def _set_records(request: Object, records: bytes) -> None:
    (topic,) = _objects(request["topicData"])
    (partition,) = _objects(topic["partitionData"])
    partition["records"] = base64.b64encode(records).decode()


def _as_producer(batch: bytes, producer: Object) -> bytes:
    """The recorded batch with another producer id, epoch and sequence, and its new checksum."""
    changed = bytearray(batch)
    struct.pack_into(">qhi", changed, 43, producer["id"], producer["epoch"], producer["sequence"])
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)
