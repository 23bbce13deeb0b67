"""What a broker serves, so that a test names what it needs and is left out where that is missing."""

from __future__ import annotations

import pytest

from tidelog.clients.connection import Connection, api_name, split_address
from tidelog.protocol.message import Message


def needs(bootstrap: str, *requests: type[Message]) -> None:
    """Leave the test out where the broker does not serve one of the APIs."""
    with Connection(*split_address(bootstrap)) as broker:
        for request in requests:
            if not broker.serves(request):
                pytest.skip(f"the broker does not serve {api_name(request)}")
