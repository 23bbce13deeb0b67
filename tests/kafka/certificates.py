"""Keys and certificates for tests, made by openssl: an authority, a server and a client."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(slots=True, frozen=True)
class Certificates:
    """PEM files; `server` and `client` have the key and the certificate that the authority signed."""

    authority: Path
    server: Path
    client: Path
    client_locked: Path
    stranger: Path
    """Another authority, whom nobody here trusts."""


def make_certificates(folder: Path, password: str) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on the path")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("authority", "stranger"):
        _openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                 "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
                 "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip
    for name in ("server", "client"):
        _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        (folder / "names").write_text(
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n"
        )
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem",
                 "-CAkey", "authority.key", "-CAcreateserial", "-days", "2", "-out", f"{name}.crt",
                 "-extfile", "names")  # fmt: skip
        chain = (folder / f"{name}.crt").read_text()
        (folder / f"{name}.pem").write_text((folder / f"{name}.key").read_text() + chain)
    _openssl(
        folder, "pkcs8", "-topk8", "-in", "client.key", "-out", "locked.key", "-passout", f"pass:{password}"
    )
    locked = folder / "client-locked.pem"
    locked.write_text((folder / "locked.key").read_text() + (folder / "client.crt").read_text())
    return Certificates(
        folder / "authority.pem",
        folder / "server.pem",
        folder / "client.pem",
        locked,
        folder / "stranger.pem",
    )


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
