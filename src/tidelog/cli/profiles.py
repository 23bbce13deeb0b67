"""Named clusters: the user's file of profiles, the file of a project, and which of them a tool uses.

The user's file is `tidelog/profiles.toml` in $XDG_CONFIG_HOME or ~/.config. A project's file is
`tidelog.toml` in the current folder or one above it, up to the root of the git repository. The first of these
decides: the flag, $TIDELOG_PROFILE, the project, the profile in use. Passwords are references: `${env:NAME}`
and `${file:PATH}` are replaced when a tool connects, and never printed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "TIDELOG_PROFILE"
PROJECT_FILE = "tidelog.toml"
NAME = re.compile(r"[\w.-]+")
SERVERS = re.compile(r"[^\s,:]+(?::\d+)?|\[[0-9a-fA-F:]+\]:\d+|[^\s,]+:\d+")
REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
SECRET = re.compile(
    r"(?i)password|secret|passphrase|private\.key|keystore\.key$|\.token$|jaas\.config|credential"
)
JAAS_SECRET = re.compile(r"""(?i)(?:password|secret|token(?!auth))\w*\s*=(?!\s*["']?\$\{)""")
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


class ProfileError(ValueError):
    """A profile or a file of profiles cannot be used."""


@dataclass(slots=True)
class Profile:
    """A cluster: where it is, how to connect, and the colour of its prompt."""

    name: str
    bootstrap_servers: str = ""
    colour: str = ""
    description: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    def problems(self, *, references: bool = True) -> list[str]:
        """What is wrong with it, also with its `references`; the cluster is not asked."""
        found: list[str] = []
        if not self.bootstrap_servers:
            found.append("bootstrap_servers is missing")
        for server in filter(None, self.bootstrap_servers.split(",")):
            if not SERVERS.fullmatch(server.strip()):
                found.append(f"bootstrap_servers: {server!r} is no HOST:PORT")
        if self.colour and self.colour.removeprefix("hi-") not in COLOURS:
            found.append(f"colour is {self.colour!r}; expected one of {', '.join(COLOURS)}, or hi- before it")
        for name, value in self.settings.items():
            if is_plain_secret(name, value):
                found.append(f"{name} has a password in it; write ${{env:NAME}} or ${{file:PATH}}")
            if references:
                found += [f"{name}: {problem}" for problem in reference_problems(value)]
        return found

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "bootstrap_servers": self.bootstrap_servers,
            "colour": self.colour,
            "description": self.description,
            "settings": {name: shown(name, value) for name, value in self.settings.items()},
        }


def is_plain_secret(name: str, value: str) -> bool:
    """Whether a setting holds a password itself instead of a reference to it."""
    if name.lower().endswith("jaas.config"):
        return JAAS_SECRET.search(value) is not None
    return SECRET.search(name) is not None and not REFERENCE.fullmatch(value.strip()) and value != ""


def shown(name: str, value: str) -> str:
    """A value for people: a password that is no reference is hidden."""
    return "[hidden]" if is_plain_secret(name, value) else value


def reference_problems(value: str) -> list[str]:
    found = []
    for kind, name in REFERENCE.findall(value):
        if kind == "env" and name not in os.environ:
            found.append(f"the environment has no {name}")
        if kind == "file" and not os.access(Path(name).expanduser(), os.R_OK):
            found.append(f"the file {name} cannot be read")
    return found


def expanded(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings with their references replaced. Raises ProfileError for a reference to nothing."""

    def replaced(found: re.Match[str]) -> str:
        kind, name = found.groups()
        try:
            if kind == "env":
                return os.environ[name]
            return Path(name).expanduser().read_text().rstrip("\n")
        except (KeyError, OSError):
            (problem,) = reference_problems(found.group()) or ["it cannot be read"]
            raise ProfileError(f"a setting of the profile refers to {found.group()}: {problem}") from None

    return {name: REFERENCE.sub(replaced, value) for name, value in settings.items()}


def user_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "tidelog" / "profiles.toml"


@dataclass(slots=True)
class ProfileFile:
    """The user's profiles, and the name of the one in use."""

    path: Path
    current: str = ""
    profiles: dict[str, Profile] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None = None) -> ProfileFile:
        """The file; empty if there is none. Raises ProfileError if it cannot be read."""
        path = path or user_file()
        if not path.is_file():
            return cls(path)
        found = read_toml(path)
        made = cls(path, text_of(found, "current", path))
        tables = found.get("profiles", {})
        if not isinstance(tables, dict):
            raise ProfileError(f"{path}: profiles is no table")
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise ProfileError(f"{path}: profiles.{name} is no table")
            made.profiles[name] = profile_of(name, table, path)
        return made

    def get(self, name: str) -> Profile:
        if name not in self.profiles:
            known = ", ".join(self.profiles) or "none"
            raise ProfileError(f"there is no profile {name!r} in {self.path}: it has {known}")
        return self.profiles[name]

    def save(self) -> None:
        """Write the file for its owner alone, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self.path.with_suffix(f".{os.getpid()}")
        with open(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            file.write(self.text())
        part.replace(self.path)

    def text(self) -> str:
        lines = [f"current = {quoted(self.current)}"]
        for profile in self.profiles.values():
            lines += ["", f"[profiles.{quoted(profile.name)}]"]
            for name in ("bootstrap_servers", "colour", "description"):
                if getattr(profile, name):
                    lines.append(f"{name} = {quoted(getattr(profile, name))}")
            if profile.settings:
                lines += ["", f"[profiles.{quoted(profile.name)}.settings]"]
                lines += [f"{quoted(name)} = {quoted(value)}" for name, value in profile.settings.items()]
        return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'


def read_toml(path: Path) -> dict[str, object]:
    import tomllib  # only if there is a file: every tool comes here

    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from None


def text_of(table: Mapping[str, object], name: str, path: Path) -> str:
    value = table.get(name, "")
    if not isinstance(value, str):
        raise ProfileError(f"{path}: {name} is no text")
    return value


def profile_of(name: str, table: Mapping[str, object], path: Path) -> Profile:
    settings = table.get("settings", {})
    if not isinstance(settings, dict):
        raise ProfileError(f"{path}: the settings of {name} are no table")
    for key, value in settings.items():
        if isinstance(value, dict):
            raise ProfileError(f'{path}: write the setting in quotes: "{key}.{next(iter(value), "")}" = ...')
    plain = {
        str(key): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in settings.items()
    }
    unknown = table.keys() - {"bootstrap_servers", "colour", "description", "settings", "profile"}
    if unknown:
        raise ProfileError(f"{path}: {name} has the unknown key {sorted(unknown)[0]!r}")
    servers, colour, description = (
        text_of(table, key, path) for key in ("bootstrap_servers", "colour", "description")
    )
    return Profile(name, servers, colour, description, plain)


def project_file(folder: Path) -> Path | None:
    """The project's file in this folder or above, up to the folder with `.git`."""
    for each in (folder, *folder.parents):
        if (each / PROJECT_FILE).is_file():
            return each / PROJECT_FILE
        if (each / ".git").exists():
            return None
    return None


def project_profile(path: Path) -> Profile | str:
    """What a project's file says: a profile of its own, or the name of one of the user's.

    It may come with somebody else's code, so that it gets nothing of the user's: references are refused, and
    a profile by name keeps its own servers.
    """
    table = read_toml(path)
    name = text_of(table, "profile", path)
    own = profile_of(f"{path.parent.name}/{PROJECT_FILE}", table, path)
    if name:
        if own.bootstrap_servers or own.settings:
            raise ProfileError(f"{path}: give profile, or bootstrap_servers with settings, and not both")
        return name
    for key, value in own.settings.items():
        if REFERENCE.search(value):
            raise ProfileError(f"{path}: {key} has a reference, which only the user's own profiles may have")
    return own


@dataclass(slots=True, frozen=True)
class Active:
    """The profile that a tool uses, and what chose it: flag, environment, project or current."""

    profile: Profile
    chosen_by: str


def active_profile(flag: str | None, folder: Path | None = None) -> Active | None:
    """The profile to use; None without one. Raises ProfileError if the one that is named does not exist."""
    name, chosen_by = flag, "flag"
    if name is None:
        name, chosen_by = os.environ.get(VARIABLE), "environment"
    if name is not None:
        return Active(ProfileFile.load().get(name), chosen_by) if name else None
    found = project_file(folder or Path.cwd())
    if found is not None:
        profile = project_profile(found)
        if isinstance(profile, str):
            profile = ProfileFile.load().get(profile)
        return Active(profile, "project")
    file = ProfileFile.load()
    return Active(file.get(file.current), "current") if file.current else None
