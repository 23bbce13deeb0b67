"""CertificateRenewal: new certificates, and a new authority, for the files of a SecurityFolder.

A new authority takes three steps, because the files reach brokers and clients one after the other:
`add_authority` lets everyone trust both authorities, `renew` signs with the new one, `drop_authority` ends
the trust in the old one. Each file is replaced at once. A call that was interrupted can be made again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from tidelog.security.certificates import (
    CertificateAuthority,
    certificates_pem,
    key_type_of,
    truststore_pkcs12,
)
from tidelog.security.security_folder import (
    AUTHORITY_FILE,
    AUTHORITY_KEY,
    AUTHORITY_NAME,
    TRUSTSTORE,
    FolderRefused,
    replace_private,
)

NEXT_AUTHORITY_KEY = "ca-next.key"
"""The key of an authority that everyone trusts already and that has signed nothing yet."""


class CertificateRenewal:
    """All methods return the files that they have replaced. FolderRefused if a file is missing or wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def renew(self, days: int) -> list[Path]:
        """Replace every key and certificate but the authority's.

        The added authority signs them, if there is one. The passwords of stores stay. FolderRefused if the
        authority ends before the certificates would.
        """
        next_key = self.path / NEXT_AUTHORITY_KEY
        key = next_key if next_key.exists() else self.path / AUTHORITY_KEY
        authority = self._authority(key, days)
        _check_end(authority, days)
        files: dict[Path, bytes] = {}
        for file in self._certificates():
            try:
                pair = authority.renewed(_certificate(file))
            except x509.ExtensionNotFound:
                raise _not_ours(file) from None
            files[file] = pair.key_pem() + pair.certificate_pem()
            store = file.with_suffix(".p12")
            files[store] = pair.keystore_pkcs12(file.stem, self._password(file.stem, "ssl.keystore.password"))
        replace_private(files)
        if key == next_key:
            # The last step: until then a repeated call signs with the same authority.
            next_key.replace(self.path / AUTHORITY_KEY)
        return list(files)

    def authority(self, days: int) -> CertificateAuthority:
        """The authority that signs, for certificates of so many days. FolderRefused if it ends before."""
        authority = self._authority(self.path / AUTHORITY_KEY, days)
        _check_end(authority, days)
        return authority

    def add_authority(self, days: int) -> list[Path]:
        """Make another authority, valid for so many days, and let everyone trust both.

        FolderRefused if another one was added and has signed nothing yet.
        """
        next_key = self.path / NEXT_AUTHORITY_KEY
        if next_key.exists():
            raise FolderRefused(
                f"{next_key} is a new authority already: renew without --new-authority lets it sign"
            )
        present = self._trusted()  # the key of the old authority may be lost
        key_type = key_type_of(present[-1].public_key())
        added = CertificateAuthority.create(AUTHORITY_NAME, key_type, days)
        trusted = self._trust([*present, added.pair.certificate])
        replace_private({next_key: added.pair.key_pem()})
        return trusted

    def drop_authority(self) -> list[Path]:
        """Trust the authority alone that signs. FolderRefused if certificates are from another one."""
        authority = self._authority(self.path / AUTHORITY_KEY, 1)
        if (self.path / NEXT_AUTHORITY_KEY).exists():
            raise FolderRefused("the new authority has signed nothing yet: call renew first")
        if len(self._trusted()) == 1:
            raise FolderRefused(f"{self.path / AUTHORITY_FILE} has one authority only")
        for file in self._certificates():
            if not authority.has_signed(_certificate(file)):
                problem = "is signed by an authority that would be dropped: call renew first"
                raise FolderRefused(f"{file} {problem}")
        return self._trust([authority.pair.certificate])

    def _authority(self, key: Path, days: int) -> CertificateAuthority:
        certificate = self.path / AUTHORITY_FILE
        try:
            return CertificateAuthority.load(key.read_bytes(), certificate.read_bytes(), days)
        except OSError as error:
            raise FolderRefused(
                f"{error.filename}: {error.strerror}; only the folder with the authority's key can renew"
            ) from None
        except ValueError as error:
            raise FolderRefused(f"{key} and {certificate.name}: {error}") from None

    def _certificates(self) -> list[Path]:
        """The files with the keys and certificates of brokers and users."""
        return [file for file in sorted(self.path.glob("*.pem")) if file.name != AUTHORITY_FILE]

    def _trusted(self) -> list[x509.Certificate]:
        file = self.path / AUTHORITY_FILE
        try:
            return x509.load_pem_x509_certificates(file.read_bytes())
        except OSError as error:
            raise FolderRefused(f"{file}: {error.strerror}") from None
        except ValueError as error:
            raise FolderRefused(f"{file}: {error}") from None

    def _trust(self, authorities: list[x509.Certificate]) -> list[Path]:
        password = self._password("admin", "ssl.truststore.password")
        files = {
            self.path / TRUSTSTORE: truststore_pkcs12(authorities, password),
            self.path / AUTHORITY_FILE: certificates_pem(authorities),  # last: it says what was done
        }
        replace_private(files)
        return list(files)

    def _password(self, name: str, setting: str) -> str:
        """The password of a store, from the settings that name it, perhaps as a comment."""
        file = self.path / f"{name}.properties"
        try:
            lines = file.read_text().splitlines()
        except OSError as error:
            raise FolderRefused(f"{file}: {error.strerror}") from None
        for line in lines:
            found, _, value = line.removeprefix("#").partition("=")
            if found == setting:
                return value
        raise FolderRefused(f"{file} has no {setting}")


def _certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())[0]
    except ValueError:
        raise _not_ours(file) from None


def _not_ours(file: Path) -> FolderRefused:
    return FolderRefused(f"{file} has no certificate of this folder's authority")


def _check_end(authority: CertificateAuthority, days: int) -> None:
    end = authority.pair.certificate.not_valid_after_utc
    if datetime.now(UTC) + timedelta(days=days) > end:
        raise FolderRefused(
            f"the authority is valid until {end:%Y-%m-%d}: name fewer --days, or make a new one with"
            " --new-authority"
        )
