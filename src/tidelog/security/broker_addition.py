"""BrokerAddition: files for more brokers in a SecurityFolder, signed by its authority.

A new broker gets the settings of the first one, with an id, an address, a key and a certificate of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tidelog.config.properties import read_properties
from tidelog.security.certificate_renewal import CertificateRenewal
from tidelog.security.security_folder import (
    LISTENER,
    BrokerAddress,
    FolderRefused,
    broker_listener,
    broker_names,
    new_password,
    replace_private,
)

CLIENTS = ("admin.properties", "client.properties")


class BrokerAddition:
    """`add` writes the files. `addresses` has the present brokers by id."""

    def __init__(self, path: Path) -> None:
        """FolderRefused if the folder has no broker."""
        self._path = path
        found = {file.stem.removeprefix("broker-"): file for file in path.glob("broker-*.properties")}
        self._settings = {int(number): file for number, file in found.items() if number.isdigit()}
        if not self._settings:
            raise FolderRefused(f"{path} has no brokers: call tidelog security init first")
        self.addresses = {
            number: _address(number, self._settings[number]) for number in sorted(self._settings)
        }

    def add(self, hosts: Iterable[tuple[str, int]], names: Sequence[str], days: int) -> list[Path]:
        """Make the files of brokers at these hosts and ports, with the ids after the highest one.

        Returns the files. FolderRefused if the authority cannot sign, or a broker has the address.
        """
        authority = CertificateRenewal(self._path).authority(days)
        first = self._settings[min(self._settings)]
        files: dict[Path, bytes] = {}
        for host, port in hosts:
            broker = BrokerAddress(max(self.addresses) + 1, host, port)
            if any((host, port) == (known.host, known.port) for known in self.addresses.values()):
                raise FolderRefused(f"{self._path} has a broker at {broker} already")
            self.addresses[broker.broker_id] = broker
            name, password = f"broker-{broker.broker_id}", new_password()
            pair = authority.broker(name, broker_names(host, names))
            files[self._path / f"{name}.pem"] = pair.key_pem() + pair.certificate_pem()
            files[self._path / f"{name}.p12"] = pair.keystore_pkcs12(name, password)
            own = _own_settings(broker, first.stem, password)
            files[self._path / f"{name}.properties"] = _changed(first, own)
        everyone = ",".join(map(str, self.addresses.values()))
        for client in CLIENTS:
            file = self._path / client
            files[file] = _changed(file, {"bootstrap.servers": lambda _: everyone})
        replace_private(files)
        return list(files)


def _address(broker_id: int, file: Path) -> BrokerAddress:
    settings = read_properties(file)
    text = settings.get("advertised.listeners") or settings.get("listeners", "")
    host, _, port = text.removeprefix(f"{LISTENER}://").rpartition(":")
    if not host or not port.isdigit():
        raise FolderRefused(f"{file}: advertised.listeners={text} is not one address of {LISTENER}")
    return BrokerAddress(broker_id, host.strip("[]"), int(port))


def _own_settings(broker: BrokerAddress, template: str, password: str) -> dict[str, Callable[[str], str]]:
    """What differs from the settings of another broker: from the value there to the value here."""
    return {
        "broker.id": lambda _: str(broker.broker_id),
        "listeners": lambda _: broker_listener(broker),
        "advertised.listeners": lambda _: f"{LISTENER}://{broker}",
        "ssl.keystore.location": lambda value: value.replace(f"{template}.", f"broker-{broker.broker_id}."),
        "ssl.keystore.password": lambda _: password,
        "ssl.key.password": lambda _: password,
    }


def _changed(file: Path, changes: dict[str, Callable[[str], str]]) -> bytes:
    """The lines of a properties file with other values, also in comments."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise FolderRefused(f"{file}: {error.strerror}") from None
    for number, line in enumerate(lines):
        name, separator, value = line.partition("=")
        change = changes.get(name.removeprefix("#"))
        if separator and change is not None:
            lines[number] = f"{name}={change(value)}"
    return ("\n".join(lines) + "\n").encode()
