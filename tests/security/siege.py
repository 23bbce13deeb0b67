"""What attackers do beside a flood of frames: slow connections, garbage instead of TLS, bombs."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from tests.faults.client import produce_request
from tests.faults.test_hostile_batches import bomb
from tests.security.frame_flood import changed
from tests.support.raw import RawConnection
from tidelog.clients.connection import request_frame
from tidelog.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.push_telemetry import PushTelemetryRequest
from tidelog.records.codecs import Codec, compress

MEGABYTE: Final = 1 << 20
SLOW: Final = 200
BOMB_SECONDS: Final = 15.0
CODECS: Final = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
Address = tuple[str, int]


class Siege:
    """`with Siege(plain, tls, hello, topic):` attacks from three threads until the end of the block.

    `plain` and `tls` are listeners, `hello` is the first flight of a TLS client. Bombs go to `topic`.
    """

    def __init__(self, plain: Address, tls: Address, hello: bytes, topic: str) -> None:
        self._plain = plain
        self._tls = tls
        self._hello = hello
        produces = (produce_request(topic, 0, bomb(codec, 112 * MEGABYTE)) for codec in CODECS)
        self._bombs = [request_frame(produce, 9, 1, "bomber") for produce in produces]
        self._metrics = {codec: compress(codec, bytes(16 * MEGABYTE)) for codec in CODECS}
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_over, args=(work,), daemon=True)
            for work in (self._be_slow, self._speak_no_tls, self._bomb)
        ]
        self.slow_bytes = self.garbage = self.bombs = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _until_over(self, work: Callable[[random.Random], None]) -> None:
        chance = random.Random(200)
        while not self._over.is_set():
            with suppress(OSError, ConnectionError):
                work(chance)

    def _be_slow(self, chance: random.Random) -> None:
        """A byte now and then, over many connections. Half of them announce a large frame that never ends."""
        frame = request_frame(MetadataRequest(topics=None), 9, 7, "slow")
        peers = [socket.create_connection(self._plain, 10) for _ in range(SLOW)]
        try:
            for number, peer in enumerate(peers):
                if number % 2:
                    peer.sendall(struct.pack(">i", 104_857_600) + frame[4:8])
            for at in range(len(frame)):
                for number, peer in enumerate(peers):
                    peer.sendall(b"\0" if number % 2 else frame[at : at + 1])
                    self.slow_bytes += 1
                if self._over.wait(0.2):
                    return
        finally:
            for peer in peers:
                peer.close()

    def _speak_no_tls(self, chance: random.Random) -> None:
        with socket.create_connection(self._tls, 10) as peer:
            peer.sendall(changed(chance, self._hello) if chance.random() < 0.5 else chance.randbytes(200))
            peer.settimeout(0.1)
            self.garbage += 1
            peer.recv(1000)

    def _bomb(self, chance: random.Random) -> None:
        """A kilobyte of produce or telemetry that unpacks to a hundred megabytes."""
        with RawConnection(self._plain, timeout=60) as connection:
            connection.send_bytes(self._bombs[self.bombs % len(self._bombs)])
            connection.receive_frame()
            told = connection.ask(
                GetTelemetrySubscriptionsRequest(client_instance_id=bytes(16)),
                GetTelemetrySubscriptionsResponse,
                0,
            )
            codec = CODECS[self.bombs % len(CODECS)]
            push = PushTelemetryRequest(
                client_instance_id=told.client_instance_id,
                subscription_id=told.subscription_id,
                compression_type=int(codec),
                metrics=self._metrics[codec],
            )
            connection.call(push, 0)
        self.bombs += 1
        self._over.wait(BOMB_SECONDS)
