"""`tidelog consumer-groups` prints what kafka-consumer-groups prints and ends with the same codes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kafka import KafkaConsumer
from tests.support.fixtures import QUICK_REBALANCES, given_broker
from tests.support.group_members import Members
from tests.support.own_cluster import any_broker
from tests.support.routing import coordinator_address
from tests.support.wait import eventually
from tidelog.cli.consumer_groups_reset import exported, parse_datetime, parse_duration, parse_plans
from tidelog.cli.main import main
from tidelog.clients.admin import Admin
from tidelog.clients.admin.groups import decode_assignment
from tidelog.clients.connection import Connection, split_address
from tidelog.errors import MemberIdRequired
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

NewName = Callable[[str], str]
Tool = Callable[..., Result]
OF_THE_BROKER = pytest.mark.needs("ConsumerGroupHeartbeat", "group.version")
PROTOCOLS = ("classic", pytest.param("consumer", marks=OF_THE_BROKER))


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = given_broker()
    if given:
        yield given
        return
    settings = {**QUICK_REBALANCES, "offsets.topic.num.partitions": "5"}
    with any_broker(tmp_path_factory.mktemp("broker"), settings) as broker:
        yield broker.bootstrap


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["consumer-groups", "--bootstrap-server", bootstrap, *arguments])

    return run


@pytest.fixture
def members(bootstrap: str) -> Members:
    return Members(bootstrap)


def table(printed: str) -> list[list[str]]:
    """The words of each line that is not empty."""
    return [line.split() for line in printed.splitlines() if line]


def test_groups_are_listed_one_a_line(tool: Tool, members: Members, new_name: NewName) -> None:
    topic = members.topic(new_name("listed"), 1)
    one, two = sorted([new_name("group"), new_name("group")])
    for group in (two, one):
        members.commit(group, {(topic, 0): 0})
    listed = tool("--list")
    assert listed.exit_code == 0
    assert [line for line in listed.stdout.splitlines() if line in (one, two)] == [one, two]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_groups_are_listed_by_state_and_type(
    tool: Tool, members: Members, new_name: NewName, protocol: str
) -> None:
    topic = members.topic(new_name("listed"), 1)
    empty, busy = members.commit(new_name("empty"), {(topic, 0): 0}), new_name("busy")

    def listed(*arguments: str) -> list[list[str]]:
        head, *lines = table(tool("--list", *arguments).stdout)
        return [head, *(line for line in lines if line[0] in (empty, busy))]

    with members.group(busy, [topic], protocol):
        kind = protocol.capitalize()
        assert listed("--state") == [["GROUP", "STATE"], [busy, "Stable"], [empty, "Empty"]]
        assert listed("--type", "--state") == [
            ["GROUP", "TYPE", "STATE"],
            [busy, kind, "Stable"],
            [empty, "Classic", "Empty"],
        ]
        assert listed("--state", "stable,dead") == [["GROUP", "STATE"], [busy, "Stable"]]
        assert [busy, kind] in listed("--type", protocol)
        assert ([empty, "Classic"] in listed("--type", protocol)) == (protocol == "classic")
        assert listed("--state", " EMPTY ", "--type", "classic")[1:] == [[empty, "Classic", "Empty"]]


def test_the_columns_of_the_list_are_filled_up(tool: Tool, members: Members, new_name: NewName) -> None:
    group = members.commit(new_name("group"), {(members.topic(new_name("t"), 1), 0): 0})
    lines = tool("--list", "--state", "--type").stdout.splitlines()
    widths = {len(line) for line in lines}
    assert len(widths) == 1
    assert next(line for line in lines if line.startswith(group)).rstrip().endswith("Empty")


def test_a_group_without_members_is_described_with_its_lag(
    tool: Tool, members: Members, new_name: NewName
) -> None:
    topic = members.topic(new_name("lag"), 3, records=10)
    group = members.commit(new_name("group"), {(topic, 0): 4, (topic, 2): 10})
    described = tool("--describe", "--group", group)
    assert described.exit_code == 0
    assert described.stderr == f"\nConsumer group '{group}' has no active members.\n"
    width, end = len(group), len(topic)
    assert described.stdout == (
        f"\n{'GROUP':<{width}} {'TOPIC':<{end}} PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             "
        "CONSUMER-ID     HOST            CLIENT-ID\n"
        f"{group} {topic} 0          4               10              6               "
        "-               -               -\n"
        f"{group} {topic} 2          10              10              0               "
        "-               -               -\n"
    )
    assert tool("--describe", "--group", group, "--offsets").stdout == described.stdout
    verbose = table(tool("--describe", "--group", group, "--verbose").stdout)
    assert verbose[0][3] == "LEADER-EPOCH"
    assert len(verbose) == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_with_members_is_described_by_who_reads_what(
    tool: Tool, members: Members, new_name: NewName, protocol: str
) -> None:
    topic, other = (
        members.topic(new_name("read"), 3, records=5),
        members.topic(new_name("left"), 1, records=2),
    )
    group = members.commit(new_name("group"), {(topic, 0): 3, (other, 0): 1})
    with members.group(group, [topic], protocol, ["one", "two"]) as consumers:
        described = tool("--describe", "--group", group)
        assert (described.exit_code, described.stderr) == (0, "")
        _head, *rows = table(described.stdout)
        held = {partition.partition for partition in consumers[0].assignment()}
        readers = {int(row[2]): row[8] for row in rows if row[1] == topic}
        assert readers == {index: "one" if index in held else "two" for index in range(3)}
        # Whoever has most comes first; what nobody reads comes last.
        assert rows[0][6] == rows[1][6] != rows[2][6]
        assert rows[3] == [group, other, "0", "1", "2", "1", "-", "-", "-"]
        by_partition = {row[2]: row[3:6] for row in rows[:3]}
        assert by_partition == {"0": ["3", "5", "2"], "1": ["-", "5", "-"], "2": ["-", "5", "-"]}
        assert all("127.0.0.1" in row[7] for row in rows[:3])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_are_described(tool: Tool, members: Members, new_name: NewName, protocol: str) -> None:
    topic, group = members.topic(new_name("members"), 3), new_name("group")
    with members.group(group, [topic], protocol, ["one", "two"]):
        head, *lines = tool("--describe", "--group", group, "--members").stdout.splitlines()[1:]
        assert head.split() == ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
        assert sorted(line.split()[4] for line in lines) == ["1", "2"]
        assert sorted(line.split()[3] for line in lines) == ["one", "two"]
        assert all(line.endswith(" ") for line in (head, *lines))
        verbose = table(tool("--describe", "--group", group, "--members", "--verbose").stdout)
        assert verbose[0][5:] == ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
        held = [line[6].removeprefix(f"{topic}:").split(",") for line in verbose[1:]]
        assert sorted(index for indexes in held for index in indexes) == ["0", "1", "2"]
        for line in verbose[1:]:
            assert line[8] == (line[6] if protocol == "consumer" else "-")
            assert line[5] == line[7]
            assert line[5].isdigit() == (protocol == "consumer")


@OF_THE_BROKER
def test_members_on_their_way_to_the_newer_protocol_say_who_is_there(
    tool: Tool, members: Members, new_name: NewName
) -> None:
    topic, group = members.topic(new_name("migrates"), 2), new_name("group")
    with (
        members.group(group, [topic], "classic", ["old"]) as old,
        members.joining(group, [topic], "consumer", "new", beside=old),
    ):
        verbose = table(tool("--describe", "--group", group, "--members", "--verbose").stdout)
        assert verbose[0][-1] == "UPGRADED"
        assert {line[3]: line[-1] for line in verbose[1:]} == {"old": "false", "new": "true"}
        assert "UPGRADED" not in tool("--describe", "--group", group, "--members").stdout


def test_members_of_a_second_client_library_are_described(
    tool: Tool, members: Members, new_name: NewName, bootstrap: str
) -> None:
    topic, group = members.topic(new_name("python"), 2, records=3), new_name("group")
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, client_id="python", auto_offset_reset="earliest"
    )
    try:
        # Its polls are long: one that ends just as it has joined makes it forget what it was assigned.
        eventually(lambda: consumer.poll(timeout_ms=3000) and len(consumer.assignment()) == 2, "it reads", 30)
        consumer.commit()
        rows = table(tool("--describe", "--group", group).stdout)[1:]
        assert [row[2] for row in rows] == ["0", "1"]
        assert {row[8] for row in rows} == {"python"}
        assert any(row[3] == "3" and row[5] == "0" for row in rows)
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_static_members_show_their_instance(
    tool: Tool, members: Members, new_name: NewName, protocol: str
) -> None:
    topic, group = members.topic(new_name("static"), 2), new_name("group")
    with members.group(group, [topic], protocol, ["one@rack-1", "two"]):
        lines = table(tool("--describe", "--group", group, "--members").stdout)
        assert lines[0][2] == "GROUP-INSTANCE-ID"
        assert sorted(len(line) for line in lines[1:]) == [5, 6]
        assert [line[2] for line in lines[1:] if len(line) == 6] == ["rack-1"]


@pytest.mark.parametrize(
    ("protocol", "assignor"),
    [("classic", "range"), pytest.param("consumer", "uniform", marks=OF_THE_BROKER)],
)
def test_the_state_of_a_group_is_described(
    tool: Tool, members: Members, new_name: NewName, bootstrap: str, protocol: str, assignor: str
) -> None:
    topic, group = members.topic(new_name("state"), 1), new_name("group")
    with members.group(group, [topic], protocol):
        head, line = tool("--describe", "--group", group, "--state").stdout.splitlines()[1:]
        assert head.split() == ["GROUP", "COORDINATOR", "(ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]
        with Admin(bootstrap_servers=bootstrap) as admin:
            nodes = admin.describe_cluster().nodes
        assert line.startswith(tuple(f"{group} {node.host}:{node.port}  ({node.id})" for node in nodes))
        assert line.split()[3:] == [assignor, "Stable", "1"]
        verbose = table(tool("--describe", "--group", group, "--state", "--verbose").stdout)
        assert verbose[0][5:] == ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS"]
        assert verbose[1][5] == verbose[1][6]
        assert verbose[1][5].isdigit() == (protocol == "consumer")
    eventually(
        lambda: table(tool("--describe", "--group", group, "--state").stdout)[1][4:] == ["Empty", "0"],
        "the group is empty",
    )


def test_a_group_that_rebalances_is_warned_of(
    tool: Tool, members: Members, new_name: NewName, bootstrap: str
) -> None:
    group = members.commit(new_name("group"), {(members.topic(new_name("t"), 1, 3), 0): 1})
    with Connection(*split_address(coordinator_address(bootstrap, group))) as connection:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(
            name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff"
        )
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        asked = connection.call(join, JoinGroupResponse)
        assert asked.error_code == MemberIdRequired.code
        join.member_id = asked.member_id
        # It has joined, and never says what everybody gets.
        assert connection.call(join, JoinGroupResponse).error_code == 0
        described = tool("--describe", "--group", group)
        assert described.stderr == f"\nWarning: Consumer group '{group}' is rebalancing.\n"
        assert table(described.stdout)[1][3:6] == ["1", "3", "2"]
        assert table(tool("--describe", "--group", group, "--state").stdout)[1][3:] == [
            "-",
            "CompletingRebalance",
            "1",
        ]


def test_all_groups_are_described_one_after_the_other(
    tool: Tool, members: Members, new_name: NewName
) -> None:
    topic = members.topic(new_name("all"), 1, records=2)
    groups = sorted(members.commit(new_name("group"), {(topic, 0): n}) for n in (1, 2))
    every = tool("--describe", "--all-groups").stdout.split("\n\n")
    both = tool("--describe", "--group", groups[1], "--group", groups[0]).stdout
    assert [line[0] for line in table(both)] == ["GROUP", groups[0], "GROUP", groups[1]]
    assert sum(any(group in part for group in groups) for part in every) == 2


@pytest.mark.needs("DescribeGroups v6")  # older brokers call it dead, and Kafka's tool says that otherwise
def test_a_group_that_does_not_exist_is_told(tool: Tool, new_name: NewName) -> None:
    group = new_name("nowhere")
    for what in ((), ("--members",), ("--state",)):
        described = tool("--describe", "--group", group, *what)
        assert described.exit_code == 0
        assert described.stdout == (
            "\nError: Executing consumer group command failed due to "
            f"org.apache.kafka.common.errors.GroupIdNotFoundException: Group {group} not found.\n"
        )


# What a group at offset 4 of ten records, in one of two partitions, is reset to.
SCENARIOS = [
    (("--to-earliest",), {0: 0, 1: 0}),
    (("--to-latest",), {0: 10, 1: 10}),
    (("--to-offset", "7"), {0: 7, 1: 7}),
    (("--to-offset", "99"), {0: 10, 1: 10}),
    (("--to-offset", "-5"), {0: 0, 1: 0}),
    (("--to-current",), {0: 4, 1: 10}),
    (("--by-duration", "P1D"), {0: 0, 1: 0}),
    (("--to-datetime", "2001-01-01T00:00:00.000"), {0: 0, 1: 0}),
    (("--to-datetime", "2001-01-01T00:00:00.000+01:00"), {0: 0, 1: 0}),
]


@pytest.mark.parametrize(("scenario", "expected"), SCENARIOS)
def test_offsets_are_reset_only_with_execute(
    tool: Tool, members: Members, new_name: NewName, scenario: tuple[str, ...], expected: dict[int, int]
) -> None:
    topic = members.topic(new_name("reset"), 2, records=10)
    group = members.commit(new_name("group"), {(topic, 0): 4})
    arguments = ("--reset-offsets", "--group", group, "--topic", topic, *scenario)
    planned = tool(*arguments, "--dry-run")
    assert planned.exit_code == 0
    rows = [[group, topic, str(index), str(offset)] for index, offset in expected.items()]
    assert table(planned.stdout) == [["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], *rows]
    assert members.committed(group, [(topic, 0)]) == {(topic, 0): 4}
    assert tool(*arguments).stdout == planned.stdout
    assert tool(*arguments, "--execute").stdout == planned.stdout or "current" in scenario[0]
    assert members.committed(group, [(topic, 0), (topic, 1)]) == {
        (topic, index): offset for index, offset in expected.items()
    }


def test_offsets_are_shifted_within_the_log(tool: Tool, members: Members, new_name: NewName) -> None:
    topic = members.topic(new_name("shift"), 2, records=10)
    group = members.commit(new_name("group"), {(topic, 0): 4, (topic, 1): 9})

    def shifted(by: str) -> list[str]:
        reset = tool("--reset-offsets", "--group", group, "--all-topics", "--shift-by", by, "--dry-run")
        return [row[3] for row in table(reset.stdout)[1:]]

    assert shifted("-2") == ["2", "7"]
    assert shifted("3") == ["7", "10"]
    assert shifted("-99") == ["0", "0"]
    refused = tool("--reset-offsets", "--group", new_name("new"), "--topic", topic, "--shift-by", "1")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"Cannot shift offset for partition {topic}-0" in refused.stderr


def test_a_time_after_the_last_record_resets_to_the_end(
    tool: Tool, members: Members, new_name: NewName
) -> None:
    topic, empty = members.topic(new_name("late"), 1, records=3), members.topic(new_name("empty"), 1)
    later = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() + 3600))
    reset = tool(
        *("--reset-offsets", "--group", new_name("new"), "--dry-run"),
        *("--topic", topic, "--topic", empty, "--to-datetime", later),
    )
    assert (
        f"Warn: Partition 0 from topic {topic} is empty. Falling back to latest known offset.\n"
        in reset.stdout
    )
    assert {row[1]: row[3] for row in table(reset.stdout)[-2:]} == {topic: "3", empty: "0"}


def test_a_group_need_not_exist_to_get_offsets(tool: Tool, members: Members, new_name: NewName) -> None:
    topic, group = members.topic(new_name("new"), 3, records=4), new_name("group")
    reset = tool("--reset-offsets", "--group", group, "--topic", f"{topic}:0,2", "--to-latest", "--execute")
    assert [row[2:] for row in table(reset.stdout)[1:]] == [["0", "4"], ["2", "4"]]
    described = table(tool("--describe", "--group", group).stdout)[1:]
    assert [row[2:6] for row in described] == [["0", "4", "4", "0"], ["2", "4", "4", "0"]]


def test_a_group_with_members_is_not_reset(tool: Tool, members: Members, new_name: NewName) -> None:
    topic, busy = members.topic(new_name("busy"), 1, records=4), new_name("busy")
    idle = members.commit(new_name("idle"), {(topic, 0): 1})
    with members.group(busy, [topic]):
        both = ("--group", busy, "--group", idle)
        reset = tool("--reset-offsets", *both, "--topic", topic, "--to-latest", "--execute")
        assert (
            f"\nError: Assignments can only be reset if the group '{busy}' is inactive, "
            "but the current state is Stable.\n"
        ) in reset.stdout
        assert table(reset.stdout)[1:] == [
            ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
            [idle, topic, "0", "4"],
        ]
        assert members.committed(idle, [(topic, 0)]) == {(topic, 0): 4}


def test_plans_of_one_group_and_of_many_go_out_and_come_back(
    tool: Tool, members: Members, new_name: NewName, tmp_path: Path
) -> None:
    topic = members.topic(new_name("csv"), 2, records=10)
    one = members.commit("one-" + new_name("group"), {(topic, 0): 3, (topic, 1): 5})
    two = members.commit("two-" + new_name("group"), {(topic, 1): 8})
    file = tmp_path / "plan.csv"

    export = ("--reset-offsets", "--all-topics", "--to-current", "--dry-run", "--export")
    alone = tool(*export, "--group", one)
    assert alone.stdout == f"{topic},0,3\n{topic},1,5\n\n"
    file.write_text(alone.stdout)
    tool("--reset-offsets", "--group", one, "--all-topics", "--to-latest", "--execute")
    back = tool("--reset-offsets", "--group", one, "--from-file", str(file), "--execute")
    assert [row[2:] for row in table(back.stdout)[1:]] == [["0", "3"], ["1", "5"]]
    assert members.committed(one, [(topic, 0), (topic, 1)]) == {(topic, 0): 3, (topic, 1): 5}

    both = tool(*export, "--group", one, "--group", two)
    assert both.stdout == f"{one},{topic},0,3\n{one},{topic},1,5\n{two},{topic},1,8\n\n"
    file.write_text(both.stdout)
    again = tool("--reset-offsets", "--group", two, "--from-file", str(file), "--dry-run", "--export")
    assert again.stdout == f"{topic},1,8\n\n"
    other = tool("--reset-offsets", "--group", new_name("other"), "--from-file", str(file), "--dry-run")
    assert "Error: No reset plan for group other-" in other.stdout


def test_names_that_need_it_are_quoted_in_plans() -> None:
    long = "a" * 25
    text = exported({'say "hi", all': {("plain", 0): 1, (long, 2): 3}}, with_group=True)
    assert text == f'"say ""hi"", all","{long}",2,3\n"say ""hi"", all",plain,0,1\n'
    assert parse_plans(text, None) == {'say "hi", all': {("plain", 0): 1, (long, 2): 3}}


@pytest.mark.parametrize(
    "text", ["t,0", "t,0,1\nt,1", "t,x,1", "t,0,x", "g,t,0,1,2", "t,-1,5", "t,0,1\n\nt,1,2"]
)
def test_files_that_are_no_plan_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"line [12]"):
        parse_plans(text, "g")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--topic", "nowhere-at-all", "--to-latest"), "UnknownTopicOrPartitionException"),
        (("--topic", "{topic}:7", "--to-latest"), 'The partitions "{topic}-7" do not exist'),
        (("--topic", "{topic}", "--by-duration", "1 day"), "expected PnDTnHnMnS"),
        (("--topic", "{topic}", "--to-datetime", "2020-01-01"), "expected YYYY-MM-DDThh:mm:ss.sss"),
        (("--from-file", "no/such/file"), "No such file"),
    ],
)
def test_resets_that_fail_say_why_and_change_nothing(
    tool: Tool, members: Members, new_name: NewName, arguments: tuple[str, ...], reason: str
) -> None:
    topic = members.topic(new_name("fails"), 1, records=3)
    group = members.commit(new_name("group"), {(topic, 0): 1})
    filled = [argument.replace("{topic}", topic) for argument in arguments]
    failed = tool("--reset-offsets", "--group", group, "--execute", *filled)
    assert failed.exit_code == 0
    assert failed.stdout.startswith("\nError: Executing consumer group command failed due to ")
    assert reason.replace("{topic}", topic) in failed.stdout
    assert members.committed(group, [(topic, 0)]) == {(topic, 0): 1}


def test_groups_are_deleted_with_their_offsets(tool: Tool, members: Members, new_name: NewName) -> None:
    topic = members.topic(new_name("deleted"), 1, records=3)
    one, two = (members.commit(new_name("group"), {(topic, 0): 1}) for _ in range(2))
    deleted = tool("--delete", "--group", one, "--group", two)
    assert deleted.exit_code == 0
    assert deleted.stdout in (
        f"Deletion of requested consumer groups ('{one}', '{two}') was successful.\n",
        f"Deletion of requested consumer groups ('{two}', '{one}') was successful.\n",
    )
    assert not {one, two} & set(tool("--list").stdout.splitlines())
    assert members.committed(one, [(topic, 0)])[topic, 0] < 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_groups_with_members_are_not_deleted(
    tool: Tool, members: Members, new_name: NewName, protocol: str
) -> None:
    topic, busy = members.topic(new_name("kept"), 1), new_name("busy")
    idle = members.commit(new_name("idle"), {(topic, 0): 0})
    nowhere = new_name("nowhere")
    with members.group(busy, [topic], protocol):
        groups = [part for group in (busy, idle, nowhere) for part in ("--group", group)]
        deleted = tool("--delete", *groups)
        assert deleted.exit_code == 0
        kafka = "org.apache.kafka.common.errors"
        assert set(deleted.stdout.splitlines()) == {
            "",
            "Error: Deletion of some consumer groups failed:",
            f"* Group '{busy}' could not be deleted due to: {kafka}.GroupNotEmptyException: "
            "The group is not empty.",
            f"* Group '{nowhere}' could not be deleted due to: {kafka}.GroupIdNotFoundException: "
            "The group id does not exist.",
            f"These consumer groups were deleted successfully: '{idle}'",
        }
        assert busy in tool("--list").stdout


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_offsets_are_deleted_unless_their_topic_is_read(
    tool: Tool, members: Members, new_name: NewName, protocol: str
) -> None:
    read, left = members.topic("a-" + new_name("read"), 1, 3), members.topic("b-" + new_name("left"), 2, 3)
    group = members.commit(new_name("group"), {(read, 0): 1, (left, 0): 2, (left, 1): 3})
    with members.group(group, [read], protocol):
        topics = ("--topic", read, "--topic", f"{left}:1", "--topic", "no-such-topic")
        deleted = tool("--delete-offsets", "--group", group, *topics)
        assert deleted.exit_code == 0
        lines = deleted.stdout.splitlines()
        assert lines[:3] == [
            "",
            "Error: Encountered some partition-level error, see the follow-up details.",
            "",
        ]
        assert [line.split()[:3] for line in lines[3:]] == [
            ["TOPIC", "PARTITION", "STATUS"],
            [read, "0", "Error:"],
            [left, "1", "Successful"],
            ["no-such-topic", "-", "Error:"],
        ]
        assert "GroupSubscribedToTopicException" in lines[4]
        assert "UnknownTopicOrPartitionException" in lines[6]
    left_over = members.committed(group, [(read, 0), (left, 0), (left, 1)])
    assert (left_over[read, 0], left_over[left, 0]) == (1, 2)
    assert left_over[left, 1] < 0


def test_offsets_of_an_idle_group_are_deleted(tool: Tool, members: Members, new_name: NewName) -> None:
    topic = members.topic(new_name("idle"), 2, records=3)
    group = members.commit(new_name("group"), {(topic, 0): 1, (topic, 1): 1})
    deleted = tool("--delete-offsets", "--group", group, "--topic", topic)
    assert deleted.stdout.startswith(f"Request succeeded for deleting offsets from group {group}.\n\nTOPIC")
    assert [row[1:] for row in table(deleted.stdout)[2:]] == [["0", "Successful"], ["1", "Successful"]]
    nowhere = tool("--delete-offsets", "--group", new_name("nowhere"), "--topic", f"{topic}:0")
    assert nowhere.exit_code == 0
    assert nowhere.stdout.startswith("\nError: The group id does not exist.\n\nTOPIC")
    assert "GroupIdNotFoundException" in nowhere.stdout


def test_patterns_are_checked_without_a_broker() -> None:
    good = CliRunner().invoke(main, ["consumer-groups", "--validate-regex", "orders-.*"])
    assert (good.exit_code, good.stdout) == (0, "The regular expression `orders-.*` is valid.\n")
    bad = CliRunner().invoke(main, ["consumer-groups", "--validate-regex", "a(b"])
    assert (bad.exit_code, bad.stderr) == (0, "")
    assert re.fullmatch(r"The regular expression `a\(b` is invalid: missing \).*\.\n", bad.stdout)
    # RE2 has no look-ahead, although Python has.
    assert "invalid" in CliRunner().invoke(main, ["consumer-groups", "--validate-regex", "(?=a)"]).stdout


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("P1D", 86_400_000),
        ("PT1H", 3_600_000),
        ("pt1m", 60_000),
        ("PT1.5S", 1500),
        ("PT-1.5S", -1500),
        ("-PT1H", -3_600_000),
        ("P1DT-1H", 82_800_000),
        ("P2DT3H4M5,006S", 183_845_006),
        ("PT0S", 0),
    ],
)
def test_durations_are_read_as_iso_8601(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P1Y", "PT1H ", "P1.5D", "PTS"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected PnDTnHnMnS"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:00.000", 0),
        ("1970-01-01T00:00:01.500Z", 1500),
        ("2001-09-09T01:46:40.000Z", 1_000_000_000_000),
        ("2001-09-09T03:46:40.000+02:00", 1_000_000_000_000),
        ("2001-09-08T20:46:40.000-05", 1_000_000_000_000),
    ],
)
def test_times_are_utc_unless_they_have_a_zone(text: str, milliseconds: int) -> None:
    assert parse_datetime(text) == milliseconds


@pytest.mark.parametrize("text", ["2020-01-01", "2020-01-01T00:00:00", "2020-13-01T00:00:00.000", "now"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected YYYY-MM-DDThh:mm:ss\.sss"):
        parse_datetime(text)


def test_assignments_of_newer_versions_are_read_like_the_newest_known() -> None:
    part = ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=[0, 3])
    body = ConsumerProtocolAssignment(assigned_partitions=[part]).encode(0)
    assert decode_assignment(b"\0\0" + body) == [("t", 0), ("t", 3)]
    assert decode_assignment(b"\0\x09" + body + b"more") == [("t", 0), ("t", 3)]
    assert decode_assignment(b"") == []


WRONG_USAGE = [
    ([], "exactly one of"),
    (["--list", "--describe", "--group", "g"], "exactly one of"),
    (["--describe"], "--describe needs --group or --all-groups"),
    (["--delete"], "--delete needs --group or --all-groups"),
    (["--reset-offsets", "--to-earliest", "--topic", "t"], "--reset-offsets needs --group or --all-groups"),
    (["--describe", "--group", "g", "--all-groups"], "--group does not go with --all-groups"),
    (["--describe", "--group", "g", "--members", "--offsets"], "at most one of"),
    (["--describe", "--group", "g", "--state", "--offsets"], "at most one of"),
    (["--describe", "--group", "g", "--state", "stable"], "--state takes no value with --describe"),
    (["--describe", "--group", "g", "--topic", "t"], "--topic does not go with --describe"),
    (["--describe", "--group", "g", "--type"], "--type does not go with --describe"),
    (["--list", "--group", "g"], "--group does not go with --list"),
    (["--list", "--members"], "--members does not go with --list"),
    (["--list", "--verbose"], "--verbose does not go with --list"),
    (["--list", "--state", "bogus"], "CompletingRebalance"),
    (["--list", "--type", "share"], "Classic, Consumer"),
    (["--delete", "--group", "g", "--topic", "t"], "--topic does not go with --delete"),
    (["--delete", "--group", "g", "--offsets"], "--offsets does not go with --delete"),
    (["--delete-offsets", "--group", "g"], "--delete-offsets needs one --group, and --topic"),
    (["--delete-offsets", "--topic", "t"], "--delete-offsets needs one --group, and --topic"),
    (["--reset-offsets", "--group", "g", "--topic", "t", "--dry-run"], "needs exactly one of --to-offset"),
    (["--reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--to-latest"], "exactly one of"),
    (["--reset-offsets", "--group", "g", "--to-earliest"], "needs --all-topics or --topic"),
    (
        ["--reset-offsets", "--group", "g", "--topic", "t", "--to-latest", "--dry-run", "--execute"],
        "--execute does not go with --dry-run",
    ),
    (["--reset-offsets", "--group", "g", "--topic", "t:a", "--to-latest"], "Invalid partition 'a'"),
    (["--reset-offsets", "--group", "g", "--topic", "t:", "--to-latest"], "Invalid topic arg 't:'"),
    (["--reset-offsets", "--group", "g", "--topic", "t", "--to-offset", "x"], "'x'"),
    (["--list", "--timeout", "0"], "--timeout is 0"),
    (["--list", "--bogus"], "--bogus"),
]


@pytest.mark.parametrize(("arguments", "reason"), WRONG_USAGE)
def test_wrong_flags_end_with_1_and_a_reason_before_anything_is_asked(
    arguments: list[str], reason: str
) -> None:
    refused = CliRunner().invoke(main, ["consumer-groups", "--bootstrap-server", "nowhere:1", *arguments])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert reason in refused.stderr


def test_nobody_at_the_address_is_an_error_with_the_address() -> None:
    failed = CliRunner().invoke(main, ["consumer-groups", "--bootstrap-server", "127.0.0.1:1", "--list"])
    assert failed.exit_code == 1  # where Kafka's tool ends with 0
    assert failed.stdout.startswith("\nError: Executing consumer group command failed due to ")
    assert "cannot connect to 127.0.0.1:1" in failed.stdout


def test_a_reset_that_is_none_is_warned_of(tool: Tool, new_name: NewName, members: Members) -> None:
    topic = members.topic(new_name("warned"), 1)
    warned = tool("--reset-offsets", "--group", new_name("group"), "--topic", topic, "--to-latest")
    assert warned.stderr.startswith("WARN: Without --execute nothing is changed.")
    assert (
        tool(
            "--reset-offsets", "--group", new_name("group"), "--topic", topic, "--to-latest", "--dry-run"
        ).stderr
        == ""
    )
