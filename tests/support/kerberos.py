"""A Kerberos realm of a test: a KDC on this machine, keytabs, and a ticket."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.ports import free_port
from tests.support.tls_broker import TlsFiles
from tests.support.wait import eventually
from tidelog.testing import Broker

REALM = "TIDE.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
LISTENERS = {"KERBEROS": "SASL_PLAINTEXT", "SECURE": "SASL_SSL"}
MODULE = "com.sun.security.auth.module.Krb5LoginModule"


def missing() -> str | None:
    """Why there can be no realm here; None if there can."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"needs the program {program} (Debian: krb5-kdc, krb5-admin-server, krb5-user)"
    if find_spec("gssapi") is None:
        return "needs the package gssapi (pip install gssapi, with Debian's libkrb5-dev)"
    return None


class Realm:
    """`with Realm(tmp_path) as realm:` runs the KDC. This process and its children use it meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = free_port()
        self.variables = {
            "KRB5_CONFIG": str(folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder / 'tickets'}",
            "KRB5RCACHEDIR": str(folder),
            # Java reads none of the variables above.
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={folder / 'krb5.conf'}",
        }
        self._before = {name: os.environ.get(name) for name in self.variables}
        self._kdc: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir()
        (self.folder / "krb5.conf").write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self._port}\n }}\n"
        )
        (self.folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self._port}\n kdc_tcp_listen = 127.0.0.1:{self._port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.folder}/principals\n"
            f"  key_stash_file = {self.folder}/stash\n  max_life = 1h\n }}\n"
        )
        os.environ.update(self.variables)
        try:
            self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of-the-test")
            log = (self.folder / "kdc.log").open("wb")
            with log:
                self._kdc = subprocess.Popen(["krb5kdc", "-n"], stdout=log, stderr=subprocess.STDOUT)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._kdc is not None:
            self._kdc.terminate()
            self._kdc.wait(30)
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    def keytab(self, principal: str) -> str:
        """A new principal's keytab."""
        path = self.folder / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        return str(path)

    def log_in(self, principal: str, keytab: str) -> None:
        """Get a ticket, as `kinit` of a user does."""

        def has_ticket() -> bool:
            with suppress(subprocess.CalledProcessError):
                self._run("kinit", "-k", "-t", keytab, principal)
                return True
            return False

        eventually(has_ticket, f"the KDC gives {principal} a ticket")

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def kerberos_broker(keytab: str, files: TlsFiles, *, host: str = "localhost", **settings: object) -> Broker:
    """A broker with the keytab of the service on `host`, where alice may do everything; the caller starts it.

    Its listeners are KERBEROS and, with TLS, SECURE.
    """
    protocols = {"PLAINTEXT": "PLAINTEXT", **LISTENERS}
    found: dict[str, object] = {
        "listeners": ",".join(f"{name}://{host}:0" for name in protocols),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files.server,
        "sasl.kerberos.service.name": "kafka",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:alice;User:ANONYMOUS",
        "connection.failed.authentication.delay.ms": 20,
    }
    for listener in LISTENERS:
        prefix = f"listener.name.{listener.lower()}."
        found[f"{prefix}sasl.enabled.mechanisms"] = "GSSAPI"
        found[f"{prefix}gssapi.sasl.jaas.config"] = login_module(keytab, f"kafka/{host}")
    return Broker(found | settings)


def login_module(keytab: str, principal: str) -> str:
    """The JAAS text of a keytab."""
    options = f'keyTab="{keytab}" principal="{principal}@{REALM}"'
    return f"{MODULE} required useKeyTab=true storeKey=true {options};"
