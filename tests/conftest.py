"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

from tests.support import secure_clients

# How long an example takes says something of the machine, nothing of the code.
settings.register_profile("without-deadline", deadline=None)
settings.load_profile("without-deadline")

secure_clients.install_if_secured()


def pytest_configure() -> None:
    # A shell starts what runs in its background deaf to Ctrl-C, and so would be what tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
