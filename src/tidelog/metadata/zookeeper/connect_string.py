"""ConnectString: the addresses and the chroot of `zookeeper.connect`."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.metadata.tree import check_path

DEFAULT_PORT = 2181


class ConnectString(NamedTuple):
    """`chroot` is empty, or a path without a slash at its end."""

    addresses: tuple[tuple[str, int], ...]
    chroot: str

    @classmethod
    def parse(cls, text: str) -> ConnectString:
        """Parse "host:port,host:port/chroot". Raises ValueError if the text has another form."""
        hosts, slash, rest = text.strip().partition("/")
        chroot = (slash + rest).rstrip("/")
        if chroot:
            check_path(chroot)
        addresses = tuple(_address(host.strip(), text) for host in hosts.split(",") if host.strip())
        if not addresses:
            raise ValueError(f"{text!r} names no ZooKeeper: it has to look like host:port,host:port/chroot")
        return cls(addresses, chroot)

    @property
    def hosts(self) -> str:
        """The addresses as text, without the chroot."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self[0])


def _address(text: str, whole: str) -> tuple[str, int]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not port:
        return host, DEFAULT_PORT
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} in {whole!r} is no address: it has to look like host:port")
    return host, int(port)
