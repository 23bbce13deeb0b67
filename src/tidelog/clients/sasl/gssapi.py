"""The mechanism GSSAPI (RFC 4752): Kerberos, with the package `gssapi`."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping
from types import ModuleType

from tidelog.config import ConfigError
from tidelog.errors import SaslAuthenticationFailed

NO_SECURITY_LAYER = 1


def gssapi_module() -> ModuleType:
    """The package `gssapi`. Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module("gssapi")
    except ImportError:
        problem = "Kerberos needs the package gssapi, which is not installed"
        raise ConfigError("sasl.mechanism", "GSSAPI", problem) from None


def gssapi_steps(
    service: str, host: str, options: Mapping[str, str] | None = None
) -> Generator[bytes, bytes, None]:
    """Prove the identity of a ticket to the service of a host. Only TLS protects the data.

    The ticket is the system's, or got with the `keyTab` of a `principal` among the options of the JAAS line.
    Such a ticket is kept in memory: the system's may be of another user.
    """
    gssapi = gssapi_module()
    options = options or {}
    try:
        credentials = None
        if "keyTab" in options and "principal" in options:
            principal = gssapi.Name(options["principal"], gssapi.NameType.kerberos_principal)
            tickets = f"MEMORY:tidelog {options['principal']}"
            store = {"client_keytab": options["keyTab"], "ccache": tickets}
            credentials = gssapi.Credentials(name=principal, usage="initiate", store=store)
        name = gssapi.Name(f"{service}@{host}", name_type=gssapi.NameType.hostbased_service)
        context = gssapi.SecurityContext(
            name=name.canonicalize(gssapi.MechType.kerberos),
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            creds=credentials,
        )
        token = context.step(None)
        while not context.complete:
            token = context.step((yield token or b""))
        # The broker offers layers of protection, and we take none.
        offered = context.unwrap((yield token or b"")).message
        if not offered[:1] or not offered[0] & NO_SECURITY_LAYER:
            raise SaslAuthenticationFailed("GSSAPI: the broker insists on a security layer of SASL")
        answer = bytes((NO_SECURITY_LAYER, 0, 0, 0)) + str(context.initiator_name).encode()
        yield context.wrap(answer, False).message
    except gssapi.exceptions.GSSError as error:
        raise SaslAuthenticationFailed(f"GSSAPI: {' '.join(str(error).split())}") from None
