"""`tidelog groups` prints what kafka-groups prints and ends with the same codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from tests.support.group_members import Members
from tidelog.cli.groups import print_groups, wanted_group
from tidelog.cli.main import main
from tidelog.clients.admin import GroupListing

NewName = Callable[[str], str]
Tool = Callable[..., Result]

SIMPLE = GroupListing("offsets-alone", "classic", "", "Empty")
CLASSIC = GroupListing("classic", "Classic", "consumer", "Stable")
CONNECT = GroupListing("connect-cluster", "Classic", "connect", "Stable")
CONSUMER = GroupListing("consumer", "Consumer", "consumer", "Stable")
SHARE = GroupListing("share", "Share", "share", "Stable")
STREAMS = GroupListing("streams", "Streams", "streams", "Stable")
ALL = (SIMPLE, CLASSIC, CONNECT, CONSUMER, SHARE, STREAMS)


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["groups", "--bootstrap-server", bootstrap, *arguments])

    return run


def test_groups_are_listed_with_type_and_protocol(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    members = Members(bootstrap)
    topic, busy = members.topic(new_name("listed"), 1), new_name("busy")
    simple = members.commit(new_name("simple"), {(topic, 0): 0})
    with members.group(busy, [topic]):
        listed = tool("--list")
        assert listed.exit_code == 0
        head, *lines = listed.stdout.splitlines()
        assert head.split() == ["GROUP", "TYPE", "PROTOCOL"]
        ours = {line.split()[0]: line for line in lines if line.split()[0] in (busy, simple)}
        assert ours[busy].split() == [busy, "Classic", "consumer"]
        assert ours[simple].split() == [simple, "Classic"]
        # Each column of a line is followed by a space, those of the header are not.
        assert {len(line) for line in lines} == {len(head) + 1}

        def chosen(*arguments: str) -> set[str]:
            return {line.split()[0] for line in tool("--list", *arguments).stdout.splitlines()} & {
                busy,
                simple,
            }

        assert chosen("--consumer") == {busy, simple}
        assert chosen("--group-type", "classic") == {busy, simple}
        assert chosen("--protocol", "consumer") == {busy}
        assert chosen("--group-type", "Consumer") == set()
        assert chosen("--share") == chosen("--streams") == chosen("--protocol", "connect") == set()


@pytest.mark.parametrize(
    ("kind", "protocol", "consumer", "expected"),
    [
        (None, None, False, ALL),
        (None, None, True, (SIMPLE, CLASSIC, CONSUMER)),
        ("classic", None, False, (SIMPLE, CLASSIC, CONNECT)),
        ("Classic", "connect", False, (CONNECT,)),
        (None, "consumer", False, (CLASSIC, CONSUMER)),
        (None, "", False, (SIMPLE,)),
        ("share", None, False, (SHARE,)),
        ("streams", None, False, (STREAMS,)),
    ],
)
def test_groups_are_chosen(
    kind: str | None, protocol: str | None, consumer: bool, expected: tuple[GroupListing, ...]
) -> None:
    assert tuple(group for group in ALL if wanted_group(group, kind, protocol, consumer)) == expected


def test_columns_are_as_wide_as_the_longest_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    name = "g" * 30
    print_groups([GroupListing(name, "Consumer", "consumer", "Stable"), SIMPLE])
    assert capsys.readouterr().out == (
        f"{'GROUP':<30} {'TYPE':<30} {'PROTOCOL':<30}\n"
        f"{name} {'Consumer':<30} {'consumer':<30} \n"
        f"{'offsets-alone':<30} {'Classic':<30} {'':<30} \n"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "expected --list"),
        (["--list", "--group-type", "bogus"], "expected one of classic, consumer, share, streams"),
        (["--list", "--consumer", "--share"], "--consumer does not go with --share"),
        (["--list", "--streams", "--protocol", "consumer"], "--streams does not go with --protocol"),
        (["--list", "--share", "--group-type", "share"], "--share does not go with --group-type"),
        (["--list", "--bogus"], "--bogus"),
    ],
)
def test_wrong_flags_end_with_1_and_a_reason(arguments: list[str], reason: str) -> None:
    refused = CliRunner().invoke(main, ["groups", "--bootstrap-server", "nowhere:1", *arguments])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert reason in refused.stderr


def test_nobody_at_the_address_is_an_error_with_the_address() -> None:
    refused = CliRunner().invoke(main, ["groups", "--bootstrap-server", "127.0.0.1:1", "--list"])
    assert refused.exit_code == 1
    assert "Error while executing groups command : cannot connect to 127.0.0.1:1" in refused.stdout
