"""TlsListeners: the TLS listeners of a broker, and the reloads of their keys.

Keys are loaded again when their settings change, when a client sets them to the same values again, and when
their files change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tidelog.config.values import ConfigError
from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.metrics.dialects import Labels
from tidelog.metrics.registry import Family
from tidelog.server.config.tls import METRICS_LISTENER
from tidelog.server.tls_listener import TlsListener

if TYPE_CHECKING:
    from tidelog.clock import TimerHandle
    from tidelog.network.loop import BrokerLoop
    from tidelog.server.config.broker import BrokerConfig

CHECK_SECONDS: Final = 10.0
"""So often the files of keys are looked at: a look is two system calls."""
CERTIFICATE_END: Final = "When the certificate of a listener ends, in seconds since 1970."


class TlsListeners:
    def __init__(self, config: BrokerConfig, loop: BrokerLoop) -> None:
        """Raises ConfigError if a listener cannot have TLS."""
        self._config = config
        self._loop = loop
        self.by_name = {
            endpoint.listener: TlsListener(config, endpoint.listener, endpoint.security_protocol)
            for endpoint in config.endpoints
            if endpoint.uses_tls
        }
        self.metrics = TlsListener(config, METRICS_LISTENER, "SSL") if config.metrics_uses_tls else None
        self._timer: TimerHandle | None = None
        self._is_closed = False
        self._warn_of_ends()
        self._wait()

    @property
    def _all(self) -> list[TlsListener]:
        return [*self.by_name.values(), *([] if self.metrics is None else [self.metrics])]

    def check(self, config: BrokerConfig) -> None:
        """Load the changes of these settings, and changed files.

        As in Kafka, raises InvalidRequest for unusable settings, and InvalidConfig for an unusable file that
        the broker has used before.
        """
        for listener in self._all:
            source = listener.source(config)
            try:
                listener.prepare(source)
            except ConfigError as error:
                refusal = InvalidConfig if listener.has_stores(source) else InvalidRequest
                raise refusal(str(error)) from None

    def update(self) -> None:
        """Use the settings of the broker, and the files as they are now, for new connections."""
        for listener in self._all:
            listener.update(listener.source(self._config))

    def families(self) -> Iterator[Family]:
        """The metrics of the certificates."""
        ends: list[tuple[Labels, float]] = [
            ((("listener", listener.listener),), listener.end) for listener in self._all
        ]
        yield Family("tidelog_certificate_end_seconds", "gauge", ends, CERTIFICATE_END)

    def _warn_of_ends(self) -> None:
        now = self._loop.clock.ms() / 1000
        for listener in self._all:
            listener.warn_of_end(now)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = self._loop.schedule(CHECK_SECONDS, self._look)

    def _look(self) -> None:
        """Check the files on a thread, because they may be on a network."""
        self._timer = None
        self._loop.run_blocking(self.update, self._looked)

    def _looked(self, _: None, error: BaseException | None) -> None:
        if not self._is_closed:
            self._warn_of_ends()
            self._wait()
        if error is not None:
            raise error
