"""What a broker serves, so that a test names what it needs and is left out where that is missing."""

from __future__ import annotations

import pytest

from tidelog.clients.connection import Connection, api_name, split_address
from tidelog.errors import UnsupportedVersion
from tidelog.protocol.message import Message
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def needs(bootstrap: str, *requests: type[Message]) -> None:
    """Leave the test out where the broker does not serve one of the APIs."""
    with Connection(*split_address(bootstrap)) as broker:
        for request in requests:
            if not broker.serves(request):
                pytest.skip(f"the broker does not serve {api_name(request)}")


def needs_consumer_groups(bootstrap: str) -> None:
    """Leave the test out where the broker does not assign partitions, though it may know the request."""
    needs(bootstrap, ConsumerGroupHeartbeatRequest)
    request = ConsumerGroupHeartbeatRequest(
        group_id="no-such-group", member_id="no-such-member", member_epoch=5, topic_partitions=[]
    )
    with Connection(*split_address(bootstrap)) as broker:
        answer = broker.call(request, ConsumerGroupHeartbeatResponse)
        if answer.error_code == UnsupportedVersion.code:
            pytest.skip("the broker does not offer groups of the consumer protocol")
