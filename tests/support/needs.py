"""What a broker has, so that a test names what it needs and is left out where that is missing.

`@pytest.mark.needs("EndTxn", "ListGroups v5", "group.version")` names APIs as Kafka spells them, if need be
with the least version, and features of the cluster.
"""

from __future__ import annotations

import pytest

from tidelog.clients.connection import Connection, split_address
from tidelog.protocol.api import API, api_name
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_KEYS = {api_name(key): key for key in API}


def first_lacking(bootstrap: str, needed: list[str]) -> str | None:
    """The first thing that is needed and not there, in words."""
    with Connection(*split_address(bootstrap)) as broker:
        about_us = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
        answer = broker.call(about_us, ApiVersionsResponse)
        served = broker.versions
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    for name in needed:
        if "." in name:
            if not levels.get(name):
                return f"the cluster does not have the feature {name}"
            continue
        api, _, version = name.partition(" v")
        _, newest = served.get(_KEYS[api], (0, -1))
        if newest < int(version or 0):
            return f"the broker does not serve {name}"
    return None


@pytest.fixture(autouse=True)
def _has_what_is_needed(request: pytest.FixtureRequest) -> None:
    """Leaves a test out where the broker lacks what the test is marked with."""
    needed = [name for mark in request.node.iter_markers("needs") for name in mark.args]
    if needed:
        lacking = first_lacking(request.getfixturevalue("bootstrap"), needed)
        if lacking is not None:
            pytest.skip(lacking)
