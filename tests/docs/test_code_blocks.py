"""Every code block of README and docs/ is run, or says before it why it cannot be.

A block is run in the order of its page, in one namespace and one folder for the page, against one broker.
`<!-- not run: REASON -->` before a block leaves it out. Blocks of `text` are output, diagrams and synopses.
"""

from __future__ import annotations

import configparser
import inspect
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.docs.pages import PAGES, PROJECT, Block, blocks
from tidelog import Admin, Consumer, Producer
from tidelog.cli.main import main
from tidelog.testing import Broker

BLOCKS = [block for path in PAGES for block in blocks(path)]
LANGUAGES = {"python", "sh", "console", "text", "json", "toml", "ini", "sql"}
HERE = re.compile(r"(?:localhost|127\.0\.0\.1):9092")
TOOL = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?tidelog (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def folder(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder beside the broker's data; afterwards the broker has no topics."""
    (tmp_path / "tidelog-data").symlink_to(broker.data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVER", broker.bootstrap_servers)
    yield tmp_path
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics(admin.list_topics())


class Page:
    """Runs the blocks of one page."""

    def __init__(self, broker: Broker, names: dict[str, object]) -> None:
        self.broker = broker
        self.names = names

    def run(self, block: Block) -> None:
        if block.language == "python":
            self.python(block)
        elif block.language in ("sh", "console"):
            self.shell(block)
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "toml":
            tomllib.loads(block.code)
        elif block.language == "ini":
            configparser.ConfigParser().read_string(block.code)
        else:
            assert block.language == "text", f"{block} cannot be run: it needs a comment that says why"

    def python(self, block: Block) -> None:
        before = dict(self.names)
        text = "\n" * block.line + HERE.sub(self.broker.bootstrap_servers, block.code)
        code = compile(text, block.page, "exec")
        with redirect_stdout(StringIO()):
            exec(code, self.names)
            for name in sorted(self.names.keys() - before.keys()):
                if name.startswith("test_"):
                    test = self.names[name]
                    assert inspect.isfunction(test)
                    self.test(test)

        close_clients(value for name, value in before.items() if self.names[name] is not value)

    def test(self, test: Callable[..., None]) -> None:
        """Call a test with the fixtures that it names, made with the settings of its marks."""
        options = {mark.name: mark.kwargs for mark in getattr(test, "pytestmark", [])}
        topic = test.__name__
        self.broker.create_topic(topic, **options.get("tidelog_topic", {}))
        with Producer(bootstrap_servers=self.broker.bootstrap_servers) as producer:
            given = {"tidelog_broker": self.broker, "tidelog_topic": topic, "tidelog_producer": producer}
            test(**{name: given[name] for name in inspect.signature(test).parameters})

    def close(self) -> None:
        """Close the clients that the page left open."""
        close_clients(self.names.values())

    def shell(self, block: Block) -> None:
        for command, shown in commands(block):
            before, _, tool = command.rpartition(" | ")
            [line] = TOOL.findall(tool) or [""]
            assert line, f"{block}: {tool!r} is no tool of ours; say why the block is not run"
            fed = subprocess.check_output(before, shell=True) if before else b""
            arguments = shlex.split(HERE.sub(self.broker.bootstrap_servers, line), comments=True)
            result = CliRunner().invoke(main, arguments, input=fed)
            assert result.exit_code == 0, f"{block}: {command}\n{result.output}"
            assert not shown or result.stdout == shown, f"{block}: {command}"


def close_clients(values: Iterable[object]) -> None:
    """An open client would make the topics of another page."""
    for value in values:
        if isinstance(value, Producer | Consumer | Admin):
            value.close()


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with the output that the block shows."""
    if block.language == "sh":
        for line in block.code.splitlines():
            yield line, ""
        return
    for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def my_program(bootstrap_servers: str, topic: str) -> None:
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        assert topic in admin.list_topics()


def table(name: str, **columns: list[object]) -> None:
    import pyarrow
    from deltalake import write_deltalake

    write_deltalake(Path("tidelog-pipeline", "tables", name), pyarrow.table(columns))


def prepare(page: str) -> dict[str, object]:
    """What a reader of the page has beside it: names, and files in the current folder."""
    if page == "README.md":
        return {"my_program": my_program}
    if page == "docs/handlers.md":
        Path("kafka-producer-async.properties").write_text("producer.type=async\n")
    if page == "docs/pipeline.md":
        table("left_swipes", ad_id=["ad-1", "ad-1"])
    if page == "docs/tables.md":
        table("credits", reason=["login", "swipe"], day=["2026-11-15", "2026-11-16"])
    if page == "docs/tutorials/first-pipeline.md":
        table("balances", user_id=["u1", "u2"], balance=[1, 2])
    return {}


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS}))
def test_the_blocks_of_a_page_run(page: str, broker: Broker, folder: Path) -> None:
    runner = Page(broker, {"__name__": "page", **prepare(page)})
    with closing(runner):
        for block in BLOCKS:
            if block.page == page and block.why_not_run is None:
                runner.run(block)


def test_every_block_has_a_language() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_a_reason_for_which_a_block_is_not_run_names_tests_that_exist() -> None:
    for block in BLOCKS:
        if (reason := block.why_not_run) is not None:
            assert len(reason) > 10, f"{block}: {reason!r} is no reason"
            for name in re.findall(r"\b(?:tests|packaging)/[\w/.]+\w", reason):
                assert (PROJECT / name).is_file(), f"{block} names {name}"


def flags_of(command: click.Command) -> set[str]:
    own = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return own | {"--help", "-h"}


def wrong_flags(line: str) -> list[str]:
    """Flags that the tool which a line calls does not have."""
    command: click.Command = main
    known = flags_of(main)
    line = line.partition(" #")[0]
    for word in re.findall(r"[^\s|\[\]`]+", line):
        context = click.Context(command)
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is not None:
            command = inner
            known |= flags_of(inner)
    if command is main:
        return [f"no tool in {line!r}"]
    return [flag for flag in re.findall(r"(?<![\w-])--[a-zA-Z][\w.-]*", line) if flag not in known]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_every_flag_that_a_page_shows_is_a_flag_of_its_tool(path: Path) -> None:
    """Also in blocks that are not run."""
    for block in blocks(path):
        for line in TOOL.findall(block.code):
            assert wrong_flags(line.partition(" | ")[0]) == [], f"{block}: {line}"
    prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`tidelog ([a-z][a-z-]+ [^`]+)`", prose):
        assert wrong_flags(line.replace("\n", " ")) == [], f"{path.name}: {line}"


def test_a_flag_that_does_not_exist_is_found() -> None:
    assert wrong_flags("topics --create --nonsense 3") == ["--nonsense"]
    assert wrong_flags("transactions --bootstrap-server a:1 list --nonsense") == ["--nonsense"]
    assert wrong_flags("transactions --bootstrap-server a:1 list --duration-filter 3") == []
