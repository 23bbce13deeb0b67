"""The passwords of tests: no broker of any test writes one into its log."""

from __future__ import annotations

import base64
import functools

from tests.support import secure
from tests.support.sasl_walks import PLAIN_USERS, SCRAM_USERS
from tests.support.secured_broker import SECRET
from tidelog.security.security_folder import ADMIN_USER, CLIENT_USER
from tidelog.testing import Broker


@functools.cache
def planted_secrets() -> frozenset[str]:
    """The passwords, as they are and in base64."""
    passwords = {SECRET, *PLAIN_USERS.values(), *SCRAM_USERS.values()}
    if secure.is_secured():
        passwords |= {secure.password(user) for user in (ADMIN_USER, CLIENT_USER)}
    return frozenset(passwords) | {base64.b64encode(each.encode()).decode()[:-4] for each in passwords}


def check_log(text: str) -> None:
    """Fail if a password is in a log."""
    found = sorted(secret for secret in planted_secrets() if secret in text)
    assert not found, f"the log of the broker has the passwords {found}"


def install() -> None:
    """Have every broker in this process checked when it is closed."""
    close = Broker.close

    @functools.wraps(close)
    def close_and_check(self: Broker) -> None:
        close(self)
        check_log("\n".join(self.log_lines()))

    Broker.close = close_and_check  # type: ignore[method-assign]
