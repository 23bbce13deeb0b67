"""`tidelog profile`: the file, the order of what decides, and passwords that nobody sees."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.flags import bootstrap_server
from tidelog.cli.main import main
from tidelog.cli.output import settings_from, tool_command
from tidelog.cli.profiles import Profile, ProfileError, ProfileFile, expanded, project_file

JAAS = 'x.ScramLoginModule required username="me" password="{}";'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without profiles, and a project in a git repository."""
    project = tmp_path / "project" / "inner"
    project.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TIDELOG_PROFILE", raising=False)
    monkeypatch.delenv("TIDELOG_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.chdir(project)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["profile", *arguments])


def create(name: str, servers: str, *more: str) -> None:
    made = run("create", name, "--bootstrap-servers", servers, *more)
    assert made.exit_code == 0, made.output


def connects_to(*arguments: str) -> dict[str, object]:
    """The settings with which a tool would connect."""

    @tool_command("probe")
    @bootstrap_server
    @click.option("--command-config")
    def probe(bootstrap_server: str, command_config: str | None) -> None:
        click.echo(json.dumps(settings_from(command_config, bootstrap_servers=bootstrap_server)))

    result = CliRunner().invoke(probe, list(arguments))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_the_life_of_a_profile(home: Path) -> None:
    create("a", "a:1", "--colour", "red", "-s", "client.id=me")
    create("b", "b:1")
    file = home / "config" / "tidelog" / "profiles.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = json.loads(run("list", "--output", "json").stdout)
    assert [(each["name"], each["active"]) for each in listed] == [("a", False), ("b", True)]
    run("use", "a")
    assert run("list").stdout.startswith("* a  a:1")
    assert connects_to() == {"bootstrap.servers": "a:1", "client.id": "me"}
    run("set", "a", "client.id=", "bootstrap_servers=c:2,d:3")
    assert connects_to() == {"bootstrap.servers": "c:2,d:3"}
    assert run("delete", "a").exit_code == 0
    assert connects_to() == {"bootstrap.servers": "127.0.0.1:9092"}
    assert "no profile 'a'" in run("use", "a").stderr


def test_flag_environment_project_profile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create("mine", "mine:1", "-s", "client.id=mine")
    create("other", "other:1", "-s", "client.id=other")
    run("use", "mine")
    project = home / "project" / "tidelog.toml"
    project.write_text('bootstrap_servers = "project:1"\n[settings]\n"client.id" = "project"\n')
    assert connects_to() == {"bootstrap.servers": "project:1", "client.id": "project"}
    project.write_text('profile = "other"\n')
    assert connects_to() == {"bootstrap.servers": "other:1", "client.id": "other"}
    monkeypatch.setenv("TIDELOG_PROFILE", "mine")
    assert connects_to() == {"bootstrap.servers": "mine:1", "client.id": "mine"}
    assert connects_to("--profile", "other") == {"bootstrap.servers": "other:1", "client.id": "other"}
    assert connects_to("--profile", "") == {"bootstrap.servers": "127.0.0.1:9092"}
    named = connects_to("--profile", "other", "--bootstrap-server", "x:1")
    assert named == {"bootstrap.servers": "x:1", "client.id": "other"}
    config = home / "client.properties"
    config.write_text("client.id=file\n")
    found = connects_to("--command-config", str(config))
    assert found == {"bootstrap.servers": "mine:1", "client.id": "file"}


def test_settings_do_not_go_to_other_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    create("mine", "mine:1", "-s", "client.id=mine")
    assert connects_to("--bootstrap-server", "x:1") == {"bootstrap.servers": "x:1"}
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVER", "y:1")
    assert connects_to() == {"bootstrap.servers": "y:1"}


def test_who_has_no_profile_is_told_how_to_make_one() -> None:
    assert "tidelog profile create NAME" in run("list").stderr
    alone = run()
    assert alone.exit_code == 1
    assert alone.stderr.startswith("Usage: ")
    assert "Error" not in alone.stderr
    assert "..." not in alone.stderr.partition("Commands:")[2]


def test_passwords_are_references(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run("create", "p", "--bootstrap-servers", "p:1", "-s", "ssl.key.password=hunter2")
    assert refused.exit_code == 1
    assert "hunter2" not in refused.output
    refused = run(
        "create", "p", "--bootstrap-servers", "p:1", "-s", f"sasl.jaas.config={JAAS.format('hunter2')}"
    )
    assert refused.exit_code == 1
    assert "hunter2" not in refused.output
    for text in ("password=hunter2;", "password = 'hunter2';", 'oauth.client.secret="hunter2"'):
        setting = f"sasl.jaas.config=x.Y required {text}"
        refused = run("create", "p", "--bootstrap-servers", "p:1", "-s", setting)
        assert (refused.exit_code, "hunter2" in refused.output) == (1, False)
    create(
        "p", "p:1", "-s", f"sasl.jaas.config={JAAS.format('${env:PW}')}", "-s", "ssl.key.password=${file:pw}"
    )
    (home / "project" / "inner" / "pw").write_text("from file\n")
    monkeypatch.setenv("PW", "from env")
    found = connects_to()
    assert found["sasl.jaas.config"] == JAAS.format("from env")
    assert found["ssl.key.password"] == "from file"
    shown = run("list", "--output", "json").output + run("list").output + run("validate").output
    assert "from env" not in shown
    assert "from file" not in shown
    monkeypatch.delenv("PW")
    missing = run("validate")
    assert missing.exit_code == 1
    assert "the environment has no PW" in missing.stdout


def test_a_password_in_the_file_is_hidden_and_found(home: Path) -> None:
    file = home / "config" / "tidelog" / "profiles.toml"
    file.parent.mkdir(parents=True)
    settings = '[profiles.p.settings]\n"sasl.password" = "hunter2"\n'
    file.write_text(f'current = "p"\n[profiles.p]\nbootstrap_servers = "p:1"\n{settings}')
    assert "hunter2" not in run("list", "--output", "yaml").output
    result = run("validate")
    assert result.exit_code == 1
    assert "hunter2" not in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profile = 1", "profile is no text"),
        ("nonsense", "tidelog.toml"),
        ('nonsense = "x"', "unknown key"),
        ('profile = "p"\nbootstrap_servers = "evil:1"', "not both"),
        ('bootstrap_servers = "evil:1"\n[settings]\n"sasl.jaas.config" = "${env:HOME}"', "has a reference"),
        ('profile = "missing"', "no profile 'missing'"),
        ("[settings]\nclient.id = 'x'", "in quotes"),
    ],
)
def test_a_project_file_that_is_wrong_is_refused(home: Path, text: str, words: str) -> None:
    create("p", "p:1")
    (home / "project" / "tidelog.toml").write_text(text)
    result = CliRunner().invoke(main, ["topics", "--list"])
    assert result.exit_code == 1
    assert words in result.stderr


def test_the_project_ends_at_the_git_root(home: Path) -> None:
    (home / "tidelog.toml").write_text('bootstrap_servers = "above:1"\n')
    assert project_file(home / "project" / "inner") is None
    assert connects_to() == {"bootstrap.servers": "127.0.0.1:9092"}


def test_the_prompt(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("prompt").stdout == ""
    create("prod", "p:1", "--colour", "hi-red")
    assert run("prompt").stdout == "\001\x1b[91m\002(prod)\001\x1b[0m\002"
    assert run("prompt", "--shell", "zsh").stdout == "%{\x1b[91m%}(prod)%{\x1b[0m%}"
    monkeypatch.setenv("NO_COLOR", "1")
    assert run("prompt").stdout == "(prod)"
    (home / "config" / "tidelog" / "profiles.toml").write_text("broken")
    result = run("prompt")
    assert (result.exit_code, result.stdout) == (0, "(profile?)")


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "a b", "--bootstrap-servers", "a:1"),
        ("create", "a", "--bootstrap-servers", "a b"),
        ("create", "a", "--bootstrap-servers", "a:1", "--colour", "pink"),
        ("set", "missing", "a=b"),
        ("delete", "missing"),
        ("use", "missing"),
    ],
)
def test_wrong_calls(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("tidelog: ")


names = st.text(min_size=1, max_size=6)


@given(st.dictionaries(names, st.tuples(names, st.dictionaries(names, names, max_size=2)), max_size=2))
def test_a_file_is_read_as_it_was_written(entries: dict[str, tuple[str, dict[str, str]]]) -> None:
    profiles = {
        name: Profile(name, servers, settings=dict(settings)) for name, (servers, settings) in entries.items()
    }
    path = Path("profiles.toml")
    path.write_text(ProfileFile(path, "x", profiles).text())
    assert ProfileFile.load(path) == ProfileFile(path, "x", profiles)


def test_a_reference_to_nothing_fails_when_it_is_used() -> None:
    with pytest.raises(ProfileError, match="NOT_THERE"):
        expanded({"a": "${env:NOT_THERE}"})


def test_a_tool_uses_the_profile(bootstrap: str) -> None:
    create("real", bootstrap)
    assert CliRunner().invoke(main, ["topics", "--list"]).exit_code == 0
    assert CliRunner().invoke(main, ["topics", "--list", "--profile", "real"]).exit_code == 0
