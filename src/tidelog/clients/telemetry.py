"""The client instance id, by which brokers that collect client metrics know a client (KIP-714)."""

from __future__ import annotations

import asyncio

from tidelog.clients.errors import TimeoutException
from tidelog.clients.network import REFUSED, NetworkClient
from tidelog.errors import KafkaError, error_class
from tidelog.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from tidelog.protocol.wire import ZERO_UUID, uuid_to_text


class Telemetry:
    """`await telemetry.client_instance_id(timeout)`: requested once and cached."""

    __slots__ = ("_client", "_found")

    def __init__(self, client: NetworkClient) -> None:
        self._client = client
        self._found: str | None = None

    async def client_instance_id(self, timeout: float) -> str:
        """The id as text. Raises UnsupportedVersion if the broker does not collect client metrics."""
        if self._found is None:
            last: KafkaError | None = None
            attempt = 0
            try:
                async with asyncio.timeout(timeout):
                    while self._found is None:
                        try:
                            self._found = await self._ask()
                        except KafkaError as error:
                            if isinstance(error, REFUSED) or not error.retriable:
                                raise
                            last = error
                            await asyncio.sleep(self._client.retry_backoff.delay(attempt))
                            attempt += 1
            except TimeoutError:
                reason = f": {last}" if last is not None else ""
                raise TimeoutException(
                    f"no id of this client within {round(timeout * 1000)} ms{reason}"
                ) from None
        return self._found

    async def _ask(self) -> str:
        answer = await self._client.call_any(
            GetTelemetrySubscriptionsRequest(client_instance_id=ZERO_UUID), GetTelemetrySubscriptionsResponse
        )
        if answer.error_code:
            raise error_class(answer.error_code)(f"the id of this client: {error_class(answer.error_code)()}")
        return uuid_to_text(answer.client_instance_id)
