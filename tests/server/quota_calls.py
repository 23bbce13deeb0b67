"""A story of AlterClientQuotas and DescribeClientQuotas, whose answers of Apache Kafka 3.9 are in tests/data.

`python -m tests.server.quota_calls HOST:PORT | gzip -9n > tests/data/client-quota-calls.json.gz` plays it
against a new broker, and records the answers.
"""

from __future__ import annotations

import json
import sys
from typing import cast

from tests.support.raw import ConnectionClosed, RawConnection
from tidelog.protocol.json import Json

ALTER, DESCRIBE = "AlterClientQuotas", "DescribeClientQuotas"
EXACT, DEFAULT, ANY = 0, 1, 2

Call = tuple[str, int, dict[str, Json]]


def entity(parts: dict[str, str | None]) -> list[Json]:
    return [{"entityType": kind, "entityName": name} for kind, name in parts.items()]


def alter(
    parts: dict[str, str | None], ops: dict[str, float | None], version: int = 1, validate_only: bool = False
) -> Call:
    entry: dict[str, Json] = {
        "entity": entity(parts),
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in ops.items()
        ],
    }
    return ALTER, version, {"entries": [entry], "validateOnly": validate_only}


def describe(parts: dict[str, tuple[int, str | None]], strict: bool = False, version: int = 1) -> Call:
    components: list[Json] = [
        {"entityType": kind, "matchType": match, "match": name} for kind, (match, name) in parts.items()
    ]
    return DESCRIBE, version, {"components": components, "strict": strict}


USER_FILTERS: list[dict[str, tuple[int, str | None]]] = [
    {},
    *({"user": (match, name)} for match, name in ((EXACT, "alice"), (DEFAULT, None), (ANY, None))),
    *({"client-id": (match, name)} for match, name in ((EXACT, "app"), (DEFAULT, None), (ANY, None))),
    {"user": (EXACT, "alice"), "client-id": (EXACT, "app")},
    {"user": (EXACT, "alice"), "client-id": (DEFAULT, None)},
    {"user": (DEFAULT, None), "client-id": (ANY, None)},
    {"user": (ANY, None), "client-id": (ANY, None)},
    {"user": (EXACT, "nobody")},
    *({"ip": (match, name)} for match, name in ((EXACT, "127.0.0.9"), (DEFAULT, None), (ANY, None))),
]

CALLS: list[Call] = [
    # Every kind of entity.
    alter({"user": "alice", "client-id": "app"}, {"producer_byte_rate": 1.0}),
    alter({"user": "alice", "client-id": None}, {"producer_byte_rate": 2.0}),
    alter({"user": "alice"}, {"producer_byte_rate": 3.0, "consumer_byte_rate": 33.0}),
    alter({"user": None, "client-id": "app"}, {"producer_byte_rate": 4.0}, version=0),
    alter({"client-id": None, "user": None}, {"producer_byte_rate": 5.0}),
    alter({"user": None}, {"request_percentage": 12.5}),
    alter({"client-id": "app"}, {"controller_mutation_rate": 0.25}),
    alter({"client-id": None}, {"producer_byte_rate": 8e15}),
    alter({"user": "a b/c*~ü"}, {"consumer_byte_rate": 9.0}),
    alter({"ip": "127.0.0.9"}, {"connection_creation_rate": 10.0}),
    alter({"ip": None}, {"connection_creation_rate": 11.0}),
    *(describe(parts, strict) for parts in USER_FILTERS for strict in (False, True)),
    describe({"user": (EXACT, "a b/c*~ü")}, version=0),
    # Filters that are refused.
    describe({"user": (EXACT, None)}),
    describe({"user": (DEFAULT, "alice")}),
    describe({"user": (3, "alice")}),
    describe({"": (EXACT, "alice")}),
    describe({"team": (EXACT, "alice")}),
    describe({"ip": (ANY, None), "user": (ANY, None)}),
    (
        DESCRIBE,
        1,
        {
            "components": [
                {"entityType": "user", "matchType": 0, "match": "alice"},
                {"entityType": "user", "matchType": 0, "match": "bob"},
            ],
            "strict": False,
        },
    ),
    # Changes that are refused.
    alter({"user": "bob"}, {"producer_byte_rate": 1.5}),
    alter({"user": "bob"}, {"producer_byte_rate": -1.0}),
    alter({"user": "bob"}, {"producer_byte_rate": 0.0}),
    alter({"user": "bob"}, {"request_percentage": -1.0}),
    alter({"user": "bob"}, {"connection_creation_rate": 1.0}),
    alter({"user": "bob"}, {"no_such_rate": 1.0}),
    alter({"user": "bob"}, {"no_such_rate": None}),
    alter({"user": "bob"}, {"SCRAM-SHA-256": 1.0}),
    alter({"user": ""}, {"producer_byte_rate": 1.0}),
    alter({"team": "x"}, {"producer_byte_rate": 1.0}),
    alter({"": "x"}, {"producer_byte_rate": 1.0}),
    alter({}, {"producer_byte_rate": 1.0}),
    alter({"ip": "127.0.0.9", "user": "bob"}, {"connection_creation_rate": 1.0}),
    alter({"ip": "no.such.host.invalid"}, {"connection_creation_rate": 1.0}),
    alter({"ip": "127.0.0.9"}, {"producer_byte_rate": 1.0}),
    alter({"ip": "127.0.0.9"}, {"connection_creation_rate": -1.0}),
    alter({"ip": "127.0.0.9"}, {"connection_creation_rate": 1.5}),
    describe({"user": (EXACT, "bob")}),
    # Nothing is written, twice in one request, several ops on one key, removed quotas.
    alter({"user": "carol"}, {"producer_byte_rate": 1.0}, validate_only=True),
    alter({"user": "carol"}, {"producer_byte_rate": 1.5}, validate_only=True),
    describe({"user": (EXACT, "carol")}),
    (
        ALTER,
        1,
        {
            "entries": [
                {
                    "entity": entity({"user": "dora"}),
                    "ops": [
                        {"key": "producer_byte_rate", "value": 1.0, "remove": False},
                        {"key": "producer_byte_rate", "value": 2.0, "remove": False},
                    ],
                },
                {
                    "entity": entity({"user": "dora"}),
                    "ops": [{"key": "consumer_byte_rate", "value": 3.0, "remove": False}],
                },
                {
                    "entity": entity({"user": "emil"}),
                    "ops": [{"key": "nothing", "value": 3.0, "remove": False}],
                },
                {
                    "entity": [*entity({"user": "fred"}), *entity({"user": "gerd"})],
                    "ops": [{"key": "consumer_byte_rate", "value": 3.0, "remove": False}],
                },
            ],
            "validateOnly": False,
        },
    ),
    (ALTER, 1, {"entries": [], "validateOnly": False}),
    describe({"user": (ANY, None)}, strict=True),
    alter({"user": "alice"}, {"producer_byte_rate": None}),
    alter({"user": None}, {"request_percentage": None, "producer_byte_rate": None}),
    describe({"user": (ANY, None)}, strict=True),
]


def answers(address: str) -> list[Json]:
    found: list[Json] = []
    raw = RawConnection(address)
    for api, version, request in CALLS:
        try:
            answer: Json = dict(raw.call_json(api, version, request))
        except ConnectionClosed:
            answer = "closed"
            raw.close()
            raw = RawConnection(address)
        found.append(ordered(answer))
    raw.close()
    return found


def ordered(answer: Json) -> Json:
    """The answer without the order of its hash maps, and without the words of its error messages."""
    if isinstance(answer, dict):
        _hide_words(answer)
    if isinstance(answer, dict) and answer.get("entries"):
        entries = cast("list[dict[str, Json]]", answer["entries"])
        for entry in entries:
            _hide_words(entry)
            for key in ("entity", "values"):
                if isinstance(entry.get(key), list):
                    entry[key] = sorted(cast("list[Json]", entry[key]), key=str)
        answer["entries"] = cast("Json", sorted(entries, key=str))
    return answer


def _hide_words(answer: dict[str, Json]) -> None:
    if answer.get("errorMessage"):
        answer["errorMessage"] = "in other words"


if __name__ == "__main__":
    print(json.dumps(answers(sys.argv[1]), indent=1, ensure_ascii=False))
