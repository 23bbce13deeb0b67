"""The exposures that `tidelog check` finds in the settings of brokers and in files with settings."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.config.properties import read_properties
from tidelog.security.exposure import SETTINGS, Exposure, exposures, holds_secrets, known_passwords

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin


@dataclass(slots=True, frozen=True)
class Exposed:
    """An exposure, and the brokers or the file that have it."""

    exposure: Exposure
    where: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "rule": None,
            "name": self.exposure.what,
            "status": "open",
            "text": self.exposure.text,
            "advice": self.exposure.advice,
            "where": list(self.where),
        }


def look_at_exposure(admin: Admin) -> list[Exposed]:
    """The same exposure of several brokers is one. Brokers never send passwords."""
    from tidelog.clients.admin.configs import ConfigResource, ResourceType

    brokers = sorted(node.id for node in admin.describe_cluster().nodes)
    found: dict[Exposure, list[str]] = {}
    described = admin.describe_configs(
        [ConfigResource(ResourceType.BROKER, str(broker)) for broker in brokers]
    )
    for resource, entries in described.items():
        settings = {
            name: entry.value
            for name, entry in entries.items()
            if name in SETTINGS or name.startswith("listener.name.")
        }
        for exposure in exposures(settings):
            found.setdefault(exposure, []).append(f"broker {resource.name}")
    return [Exposed(exposure, tuple(where)) for exposure, where in found.items()]


def look_at_broker_file(file: str, *, is_broker: bool) -> list[Exposed]:
    """A file of a broker or a client: its passwords, and who can read it; of a broker what it leaves open."""
    settings = read_properties(file)
    found = [*(exposures(settings) if is_broker else ()), *known_passwords(settings)]
    mode = stat.S_IMODE(Path(file).stat().st_mode)
    if mode & 0o077 and holds_secrets(settings):
        found.append(
            Exposure(
                f"{file} has mode {mode:04o}",
                "other users of the machine can read its passwords",
                f"chmod 600 {file}",
            )
        )
    return [Exposed(exposure, (file,)) for exposure in found]


def print_exposures(opened: list[Exposed]) -> None:
    for each in opened:
        click.echo(f"-  open    {each.exposure.what}: {each.exposure.text} ({', '.join(each.where)})")
        if each.exposure.advice:
            click.echo(f"           {each.exposure.advice}")
