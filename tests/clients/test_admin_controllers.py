"""An administrator's request follows the controller, also if the former one is silent."""

from __future__ import annotations

import asyncio

import pytest

from tidelog import AsyncAdmin
from tidelog.clients.errors import TimeoutException
from tidelog.errors import NetworkException
from tidelog.protocol.message import Message
from tidelog.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse

QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 1, "default_api_timeout_ms": 200}


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_silent_controller_is_asked_again_only_after_new_metadata(
    monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """Each attempt to connect to a paused broker takes as long as socket.connection.setup.timeout.ms says."""
    admin = AsyncAdmin(bootstrap_servers="127.0.0.1:1", **QUICK)
    asked: list[int] = []
    controller = 1

    async def start() -> None:
        """No broker is there."""

    async def refresh(*, timeout: float) -> None:
        nonlocal controller
        if not is_replaced:
            await asyncio.sleep(timeout)
            raise TimeoutException("the metadata was not refreshed")
        controller = 2

    async def call_controller(request: Message, answer: type[Message], *, timeout: float) -> Message:
        asked.append(controller)
        if controller == 1:
            raise NetworkException("cannot connect to 127.0.0.1:9092: no answer in 10.0 s")
        return CreateAclsResponse()

    for name, method in (("start", start), ("refresh", refresh), ("call_controller", call_controller)):
        monkeypatch.setattr(admin.driver.client, name, method)

    async def ask() -> CreateAclsResponse:
        deadline = admin.driver.deadline(None)
        return await admin.driver.ask_controller(
            CreateAclsRequest(), CreateAclsResponse, deadline, lambda _: 0
        )

    if is_replaced:
        asyncio.run(ask())
        assert asked == [1, 2]
    else:
        with pytest.raises(TimeoutException, match=r"cannot connect to 127\.0\.0\.1:9092"):
            asyncio.run(ask())
        assert asked == [1]
