"""The first screen of a started broker: its addresses, its data folders, and commands to try."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from tidelog import __version__


def first_screen(
    broker_id: int,
    addresses: Mapping[str, str],
    protocols: Mapping[str, str],
    folders: Sequence[str],
    metrics: str | None,
    warnings: Sequence[str] = (),
    console: str | None = None,
) -> str:
    """The lines for the terminal; the examples use the first address, one without TLS and SASL if possible.

    `protocols` has the security protocol of each listener, `metrics` and `console` are URLs.
    """
    plain = [name for name in addresses if protocols[name] == "PLAINTEXT"]
    listener = (plain or list(addresses))[0]
    address, protocol = addresses[listener], protocols[listener]
    others = [
        f"{'':14}{where}   ({name}{_with(protocols[name])})"
        for name, where in addresses.items()
        if where != address
    ]
    tool, kcat = "", ""
    if protocol != "PLAINTEXT":
        tool, kcat = " --command-config client.properties", f" -X security.protocol={protocol.lower()}"
    lines = [
        "",
        f"  tidelog {__version__}: broker {broker_id} is running",
        "",
        f"  listens on  {address}   (any Kafka client{_with(protocol)})",
        *others,
        f"  data in     {', '.join(folders)}",
    ]
    if console is not None:
        lines.append(f"  console at  {console}")
    if metrics is not None:
        lines.append(f"  metrics at  {metrics}/metrics")
    lines += [f"  warning     {warning}" for warning in warnings]
    lines += [
        "",
        f"  make a topic  {_command()} topics --bootstrap-server {address}{tool} --create --topic demo",
        f"  produce       echo hello | kcat -b {address}{kcat} -t demo -P",
        f"  consume       kcat -b {address}{kcat} -t demo -C -e",
        "",
        "  Ctrl-C stops it cleanly.",
        "",
    ]
    return "\n".join(lines)


def _with(protocol: str) -> str:
    return "" if protocol == "PLAINTEXT" else f" with {protocol}"


def _command() -> str:
    """The command for our tools: `tidelog` if it is in the PATH, else the command of this process."""
    # Not shutil.which: importing shutil would delay the first answer.
    in_path = any(os.access(os.path.join(folder, "tidelog"), os.X_OK) for folder in os.get_exec_path())
    if in_path or "/" not in sys.argv[0]:
        return "tidelog"
    return f"{sys.executable} -m tidelog" if sys.argv[0].endswith("__main__.py") else sys.argv[0]
