"""No setting that can change while the broker runs may shut everybody out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.small_client import Client
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

BROKER = 4
SET = 0


def alter(client: Client, name: str, value: str) -> int:
    config = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=SET, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER, resource_name="", configs=[config]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    return client.raw.ask(request, IncrementalAlterConfigsResponse, 1).responses[0].error_code


@pytest.mark.parametrize("scope", ["", "listener.name.plaintext."])
def test_the_number_and_rate_of_connections_stay_above_0(tmp_path: Path, scope: str) -> None:
    with Broker(tmp_path) as broker, Client(broker.address) as client:
        for name in ("max.connections", "max.connection.creation.rate"):
            assert alter(client, scope + name, "0") == ErrorCode.INVALID_REQUEST
            assert alter(client, scope + name, "100") == ErrorCode.NONE
        with Client(broker.address) as another:
            assert another.create("topic") == ErrorCode.NONE
