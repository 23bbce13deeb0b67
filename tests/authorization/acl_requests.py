"""Requests that create, describe and delete access rules, in order, and those that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import cast

from tests.support.raw import ConnectionClosed, RawConnection
from tidelog.protocol.json import Json

Request = dict[str, Json]


def _creation(**changes: Json) -> Request:
    rule: Request = {
        "resourceType": 2,
        "resourceName": "orders",
        "resourcePatternType": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permissionType": 3,
    }
    return rule | changes


def _filter(**changes: Json) -> Request:
    wanted: Request = {
        "resourceTypeFilter": 1,
        "resourceNameFilter": None,
        "patternTypeFilter": 1,
        "principalFilter": None,
        "hostFilter": None,
        "operation": 1,
        "permissionType": 1,
    }
    return wanted | changes


VALID = [
    _creation(),
    _creation(operation=4),
    _creation(operation=4),
    _creation(principal="User:*", operation=8, host="10.0.0.1"),
    _creation(permissionType=2, operation=6),
    _creation(resourceName="*", operation=2),
    _creation(resourceName="ord", resourcePatternType=4),
    _creation(resourceName="order", resourcePatternType=4, principal="User:CN=bob,O=Tide"),
    _creation(resourceName="other", resourcePatternType=4),
    _creation(resourceType=3, resourceName="my group: ä"),
    _creation(resourceType=4, resourceName="kafka-cluster", operation=9),
    _creation(resourceType=5, resourceName="tx", operation=4),
    _creation(resourceType=6, resourceName="token", operation=8),
    _creation(resourceType=7, resourceName="alice", operation=13),
    _creation(resourceType=7, resourceName="alice", operation=14),
]

REFUSED = {
    "cluster by another name": _creation(resourceType=4, resourceName="cluster"),
    "cluster as a prefix": _creation(resourceType=4, resourceName="kafka", resourcePatternType=4),
    "cluster wildcard": _creation(resourceType=4, resourceName="*"),
    "no name": _creation(resourceName=""),
    "a name with a slash": _creation(resourceName="a/b"),
    "an operation that topics do not have": _creation(operation=9),
    "an empty host": _creation(host=""),
    "a host that is no address": _creation(host="example"),
    "a principal of another type": _creation(principal="Group:admins"),
    "a principal without a type": _creation(principal="alice"),
    "an empty principal": _creation(principal=""),
    "a principal without a name": _creation(principal="User:"),
    "resource type unknown": _creation(resourceType=0),
    "resource type of the future": _creation(resourceType=99),
    "resource type any": _creation(resourceType=1),
    "pattern unknown": _creation(resourcePatternType=0),
    "pattern any": _creation(resourcePatternType=1),
    "pattern match": _creation(resourcePatternType=2),
    "operation unknown": _creation(operation=0),
    "operation of the future": _creation(operation=99),
    "operation any": _creation(operation=1),
    "permission unknown": _creation(permissionType=0),
    "permission any": _creation(permissionType=1),
}

FILTERS = {
    "everything": _filter(),
    "topics": _filter(resourceTypeFilter=2),
    "literal topics": _filter(resourceTypeFilter=2, patternTypeFilter=3),
    "by name": _filter(resourceTypeFilter=2, resourceNameFilter="orders"),
    "literal name": _filter(resourceTypeFilter=2, resourceNameFilter="orders", patternTypeFilter=3),
    "prefixed name": _filter(resourceTypeFilter=2, resourceNameFilter="ord", patternTypeFilter=4),
    "match name": _filter(resourceTypeFilter=2, resourceNameFilter="orders", patternTypeFilter=2),
    "match the wildcard": _filter(resourceTypeFilter=2, resourceNameFilter="*", patternTypeFilter=2),
    "match no name": _filter(resourceTypeFilter=2, patternTypeFilter=2),
    "literal wildcard": _filter(resourceTypeFilter=2, resourceNameFilter="*", patternTypeFilter=3),
    "principal": _filter(principalFilter="User:alice"),
    "wildcard principal": _filter(principalFilter="User:*"),
    "host": _filter(hostFilter="10.0.0.1"),
    "any host": _filter(hostFilter="*"),
    "operation": _filter(operation=4),
    "all operations": _filter(operation=2),
    "denied": _filter(permissionType=2),
    "type unknown": _filter(resourceTypeFilter=0),
    "type of the future": _filter(resourceTypeFilter=99),
    "pattern unknown": _filter(patternTypeFilter=0),
    "operation unknown": _filter(operation=0),
    "permission unknown": _filter(permissionType=0),
}

DELETED = {
    "one": [_filter(resourceTypeFilter=2, resourceNameFilter="orders", patternTypeFilter=3, operation=4)],
    "none": [_filter(resourceNameFilter="nothing")],
    "two that overlap": [_filter(principalFilter="User:*"), _filter(hostFilter="10.0.0.1")],
    "match": [_filter(resourceTypeFilter=2, resourceNameFilter="orders", patternTypeFilter=2)],
    "unknown type": [_filter(resourceTypeFilter=0)],
    "unknown operation beside a good one": [_filter(operation=0), _filter(resourceTypeFilter=5)],
    "everything": [_filter()],
}


def requests() -> Iterator[tuple[str, str, int, Request]]:
    """The name of each request, its API, version and body."""
    for version in (1, 2, 3):
        yield f"create v{version}", "CreateAcls", version, {"creations": cast("list[Json]", VALID)}
        for name, refused in REFUSED.items():
            yield f"create v{version}: {name}", "CreateAcls", version, {"creations": [refused]}
        yield (
            f"create v{version}: a good one between",
            "CreateAcls",
            version,
            {"creations": [REFUSED["no name"], _creation(resourceName="good"), REFUSED["no name"]]},
        )
        for name, wanted in FILTERS.items():
            yield f"describe v{version}: {name}", "DescribeAcls", version, wanted
        for name, filters in DELETED.items():
            body: Request = {"filters": cast("list[Json]", filters)}
            yield f"delete v{version}: {name}", "DeleteAcls", version, body
            yield f"left v{version}: {name}", "DescribeAcls", version, _filter()


def play(connect: Callable[[], RawConnection]) -> dict[str, Json]:
    """The answers, without messages and in sorted order."""
    connection = connect()
    answers: dict[str, Json] = {}
    for name, api, version, request in requests():
        try:
            answers[name] = _comparable(connection.call_json(api, version, request, 20.0))
        except ConnectionClosed:
            answers[name] = "closed"
            connection = connect()
    return answers


def _comparable(value: Json) -> Json:
    if isinstance(value, dict):
        return {
            key: _comparable(item)
            for key, item in value.items()
            if key not in ("errorMessage", "throttleTimeMs")
        }
    if isinstance(value, list):
        items = [_comparable(item) for item in value]
        if items and isinstance(items[0], dict) and "errorCode" in items[0] and "principal" not in items[0]:
            return items  # one for each of the request
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    return value
