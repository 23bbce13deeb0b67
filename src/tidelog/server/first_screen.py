"""The first screen of a started broker: its addresses, its data folders, and commands to try."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

from tidelog import __version__


def first_screen(
    broker_id: int,
    addresses: Mapping[str, str],
    folders: Sequence[str],
    metrics: tuple[str, int] | None,
) -> str:
    """The lines for the terminal; the examples use the first address."""
    address = next(iter(addresses.values()))
    others = [f"{'':14}{where}   ({name})" for name, where in addresses.items() if where != address]
    lines = [
        "",
        f"  tidelog {__version__}: broker {broker_id} is running",
        "",
        f"  listens on  {address}   (any Kafka client)",
        *others,
        f"  data in     {', '.join(folders)}",
    ]
    if metrics is not None:
        host, port = metrics
        lines.append(f"  metrics at  http://{host}:{port}/metrics")
    lines += [
        "",
        f"  make a topic  {_command()} topics --bootstrap-server {address} --create --topic demo",
        f"  produce       echo hello | kcat -b {address} -t demo -P",
        f"  consume       kcat -b {address} -t demo -C -e",
        "",
        "  Ctrl-C stops it cleanly.",
        "",
    ]
    return "\n".join(lines)


def _command() -> str:
    """The command for our tools: `tidelog` if it is in the PATH, else the command of this process."""
    if shutil.which("tidelog") or "/" not in sys.argv[0]:
        return "tidelog"
    return f"{sys.executable} -m tidelog" if sys.argv[0].endswith("__main__.py") else sys.argv[0]
