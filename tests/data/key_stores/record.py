"""Makes the key stores of this folder again, with Java 17's keytool and OpenSSL.

    python tests/data/key_stores/record.py

Passwords are in `PASSWORD` and `KEY_PASSWORD`. The keys are for tests and protect nothing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
PASSWORD = "store password"
KEY_PASSWORD = "key password"
LEGACY = "-J-Dkeystore.pkcs12.legacy"
OPEN = [f"-J-Dkeystore.pkcs12.{part}=NONE" for part in ("certProtectionAlgorithm", "macAlgorithm")]


def run(*command: str) -> None:
    subprocess.run(command, cwd=FOLDER, check=True, stdout=subprocess.DEVNULL)


def keytool(store: str, kind: str, *arguments: str) -> None:
    run("keytool", *arguments,
        "-keystore", store, "-storetype", kind, "-storepass", PASSWORD, "-noprompt")  # fmt: skip


def key(store: str, kind: str, alias: str, algorithm: str, signer: str | None, *arguments: str) -> None:
    size = ["-keysize", "2048"] if algorithm == "RSA" else ["-groupname", "secp256r1"]
    signed = [] if signer is None else ["-signer", signer, "-signerkeypass", PASSWORD]
    names = ["-ext", "bc:c"] if signer is None else ["-ext", "san=dns:localhost,ip:127.0.0.1"]
    keytool(store, kind, "-genkeypair", "-alias", alias, "-keyalg", algorithm, *size, "-dname",
            f"CN={alias}", "-startdate", "2020/01/01", "-validity", "36500",
            *signed, *names, *arguments)  # fmt: skip


def trust(store: str, kind: str, *arguments: str) -> None:
    keytool(store, kind, "-importcert", "-alias", "authority", "-file", "authority.pem", *arguments)
    keytool(store, kind, "-importcert", "-alias", "other", "-file", "other.pem", *arguments)


def main() -> None:
    for path in FOLDER.iterdir():
        if path.suffix != ".py":
            path.unlink()
    key("server.p12", "PKCS12", "authority", "EC", None)
    key("other.p12", "PKCS12", "other", "EC", None)
    for store, alias in (("server.p12", "authority"), ("other.p12", "other")):
        keytool(store, "PKCS12", "-exportcert", "-rfc", "-alias", alias, "-file", f"{alias}.pem")
    (FOLDER / "other.p12").unlink()
    key("server.p12", "PKCS12", "server-ec", "EC", "authority")
    key("server.p12", "PKCS12", "server-rsa", "RSA", "authority")
    copies = (("server.jks", "JKS"), ("server.jceks", "JCEKS"))
    for store, kind in copies:
        run("keytool", "-importkeystore", "-srckeystore", "server.p12", "-srcstorepass", PASSWORD,
            "-srcalias", "server-rsa", "-destkeystore", store, "-deststoretype", kind,
            "-deststorepass", PASSWORD, "-destkeypass", KEY_PASSWORD, "-noprompt")  # fmt: skip
    run("keytool", LEGACY, "-importkeystore", "-srckeystore", "server.p12", "-srcstorepass", PASSWORD,
        "-srcalias", "server-rsa", "-destkeystore", "legacy.p12", "-deststoretype", "PKCS12",
        "-deststorepass", PASSWORD, "-noprompt")  # fmt: skip
    keytool("server.p12", "PKCS12", "-delete", "-alias", "authority")
    keytool("server.p12", "PKCS12", "-importcert", "-alias", "other", "-file", "other.pem")
    trust("trust.jks", "JKS")
    trust("trust.p12", "PKCS12")
    trust("trust-legacy.p12", "PKCS12", LEGACY)
    trust("trust-open.p12", "PKCS12", *OPEN)
    run("openssl", "pkcs12", "-in", "legacy.p12", "-legacy", "-nodes", "-out", "server.pem",
        "-passin", f"pass:{PASSWORD}")  # fmt: skip
    run("openssl", "pkcs12", "-export", "-in", "server.pem", "-out", "openssl.p12",
        "-passout", f"pass:{PASSWORD}")  # fmt: skip
    run("openssl", "pkcs12", "-export", "-nokeys", "-in", "other.pem", "-out", "openssl-trust.p12",
        "-passout", f"pass:{PASSWORD}")  # fmt: skip
    (FOLDER / "server.pem").unlink()


if __name__ == "__main__":
    main()
