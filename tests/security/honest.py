"""A client that produces and fetches all the time, and measures how long each round trip took."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from tests.faults.client import Client, batch_of

TOPIC = "honest"
SECONDS = 1.0
"""A normal client is served within a second, whatever others do."""

LONGEST = 5.0
"""Now and then a busy machine takes longer to run this test itself."""


class Honest:
    """`with Honest(address) as honest:`; the end of the block fails if the client was not served well."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._client = Client(address)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None
        self.times: list[float] = []

    def _run(self) -> None:
        try:
            while not self.times or not self._over.wait(0.01):
                began = time.monotonic()
                value = b"honest %d" % len(self.times)
                answer = self._client.produce(TOPIC, 0, batch_of(value))
                assert answer.error == 0
                found = self._client.fetch(TOPIC, 0, answer.offset)
                assert found.error_code == 0
                assert isinstance(found.records, bytes | bytearray | memoryview)
                assert value in bytes(found.records)
                self.times.append(time.monotonic() - began)
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Self:
        assert self._client.create_topic(TOPIC, 1, {"retention.bytes": "1000000"}) in (0, 36)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(30)
        self._client.close()
        if kind is None:
            if self._failure is not None:
                raise self._failure
            self.times.sort()
            assert self.times[len(self.times) * 95 // 100] < SECONDS
            assert self.times[-1] < LONGEST
