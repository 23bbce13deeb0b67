"""What tools that take a while show: a bar on a terminal, plain lines in a pipe, each where it belongs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread

import pytest

from tests.cli.client_tools import NewName, Tool, make_topic, tool
from tests.support.wait import eventually

__all__ = ["tool"]

COLUMNS = 200
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
CLEAR_LINE = "\x1b[2K"
PIECES = re.compile(r"(\x1b\[(?:(\d+)A|[0-9;?]*[B-Za-z]))|(.)", re.DOTALL)
# Where tools tell how far they are every few seconds, tests do not want to wait so long.
TELLING_ALWAYS = """
import sys, tidelog.cli.generate
from tidelog.cli.main import main
sys.modules["tidelog.cli.generate"].TELL_EVERY = 0.0
main()
"""


class Terminal:
    """A pseudo-terminal, with everything that was shown on it."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self._shown = bytearray()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                found = os.read(self._ours, 65536)
            except OSError:  # Linux says so when the last program has left the terminal
                return
            self._shown += found

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace")

    def left_by_us(self) -> None:
        os.close(self.theirs)

    def close(self) -> None:
        self._reader.join(10)
        os.close(self._ours)


@dataclass(slots=True)
class Ran:
    exit_code: int
    terminal: str
    """What was shown on the terminal, control characters included."""
    piped: str
    """What went into the pipe, where standard output was one."""

    @property
    def lines(self) -> list[str]:
        """What stays on the terminal when the bar is gone."""
        return [line for line in seen(self.terminal) if line]


def seen(written: str) -> list[str]:
    """The lines that a person sees, of a terminal that is long and wide enough."""
    lines, row, column = [""], 0, 0
    for control, up, char in PIECES.findall(written):
        if up:
            row = max(0, row - int(up))
        elif control == CLEAR_LINE:
            lines[row] = ""
        elif char == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif char == "\r":
            column = 0
        elif char:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + char + line[column + 1 :]
            column += 1
    return lines


def on_a_terminal(
    bootstrap: str,
    name: str,
    *arguments: str,
    piped: bool = False,
    program: tuple[str, ...] = ("-m", "tidelog"),
    meanwhile: Callable[[subprocess.Popen[bytes], Terminal], None] = lambda process, terminal: None,
) -> Ran:
    """Run a tool with standard error, and standard output unless it is `piped`, on a terminal."""
    terminal = Terminal()
    env = {**os.environ, "TERM": "xterm-256color"}
    for variable in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        env.pop(variable, None)
    process = subprocess.Popen(
        [sys.executable, *program, name, "--bootstrap-server", bootstrap, *arguments],
        stdin=terminal.theirs,
        stdout=subprocess.PIPE if piped else terminal.theirs,
        stderr=terminal.theirs,
        env=env,
    )
    terminal.left_by_us()
    try:
        meanwhile(process, terminal)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        terminal.close()
    return Ran(process.returncode, terminal.shown, (output or b"").decode())


def has_a_bar(shown: str, total: int) -> bool:
    """A bar that moved up to its end, and is gone, with the cursor back."""
    counts = [int(found) for found in re.findall(rf"(\d+)/{total}\b", shown)]
    return (
        "━" in shown
        and counts == sorted(counts)
        and counts[-1:] == [total]
        and shown.rfind(CLEAR_LINE) > shown.rfind("━")
        and shown.rfind(SHOW_CURSOR) > shown.rfind(HIDE_CURSOR) >= 0
    )


def writing(topic: str, count: int, *more: str) -> tuple[str, ...]:
    return (
        *("producer-perf-test", "--topic", topic, "--num-records", str(count), "--record-size", "10"),
        *("--throughput", "-1", *more),
    )


def test_writing_shows_a_bar_on_a_terminal(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    ran = on_a_terminal(bootstrap, *writing(make_topic(tool, new_name("t")), 3000))
    assert ran.exit_code == 0, ran.terminal
    assert has_a_bar(ran.terminal, 3000), ran.terminal
    (total,) = ran.lines
    assert total.startswith("3000 records sent, ")


def test_reading_shows_a_bar_on_a_terminal(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    assert tool(*writing(topic, 500)).exit_code == 0
    ran = on_a_terminal(bootstrap, "consumer-perf-test", "--topic", topic, "--num-records", "500")
    assert ran.exit_code == 0, ran.terminal
    assert has_a_bar(ran.terminal, 500), ran.terminal
    header, figures = ran.lines
    assert header.startswith("start.time, end.time, ")
    assert figures.split(", ")[4] == "500"


def test_timing_shows_a_bar_on_a_terminal(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    ran = on_a_terminal(
        *(bootstrap, "end-to-end-latency", "--topic", make_topic(tool, new_name("t")), "--num-records", "20"),
        *("--producer-acks", "1", "--record-size", "20"),
    )
    assert ran.exit_code == 0, ran.terminal
    assert has_a_bar(ran.terminal, 20), ran.terminal
    assert [line.split(" ")[0] for line in ran.lines[-2:]] == ["Avg", "Percentiles:"]


def test_events_are_made_under_a_bar_alone(bootstrap: str) -> None:
    pytest.importorskip("pyarrow")
    flags = ("generate", "--events", "500", "--rate", "2000", "--users", "10")
    ran = on_a_terminal(bootstrap, *flags, program=("-c", TELLING_ALWAYS))
    assert ran.exit_code == 0, ran.terminal
    assert has_a_bar(ran.terminal, 500), ran.terminal
    assert ran.lines[0].startswith("500 events written in ")
    assert "of 500 events written" not in ran.terminal


def test_lines_for_a_pipe_do_not_go_to_the_terminal(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    """The bar is on standard error, and must not draw standard output to where it is."""
    topic = make_topic(tool, new_name("t"))
    ran = on_a_terminal(bootstrap, *writing(topic, 400, "--reporting-interval", "1"), piped=True)
    assert ran.exit_code == 0, ran.terminal
    assert has_a_bar(ran.terminal, 400), ran.terminal
    assert "records sent" not in ran.terminal
    *intervals, total = ran.piped.splitlines()
    assert intervals
    assert all(re.match(r"\d+ records sent, .* max latency\.$", line) for line in intervals)
    assert total.startswith("400 records sent, ")
    assert "\x1b" not in ran.piped


def test_lines_in_between_stay_above_the_bar(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    ran = on_a_terminal(bootstrap, *writing(topic, 400, "--reporting-interval", "1"))
    assert has_a_bar(ran.terminal, 400), ran.terminal
    *intervals, total = ran.lines
    assert intervals
    assert all(re.match(r"\d+ records sent, .* max latency\.$", line) for line in intervals), ran.lines
    assert total.startswith("400 records sent, ")


def test_lines_about_reading_stay_above_the_bar(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    assert tool(*writing(topic, 500)).exit_code == 0
    ran = on_a_terminal(
        *(bootstrap, "consumer-perf-test", "--topic", topic, "--num-records", "500"),
        *("--show-detailed-stats", "--reporting-interval", "1", "--command-property", "max.poll.records=50"),
    )
    assert has_a_bar(ran.terminal, 500), ran.terminal
    header, *intervals = ran.lines
    assert header.startswith("time, threadId, ")
    assert intervals
    assert all(re.match(r"\d{4}-\d\d-\d\d [\d:]+, 0, ", line) for line in intervals), ran.lines


def test_json_for_a_program_is_clean_beside_a_bar(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    ran = on_a_terminal(bootstrap, *writing(topic, 300, "--output", "json"), piped=True)
    assert json.loads(ran.piped)["records"] == 300
    assert has_a_bar(ran.terminal, 300), ran.terminal
    assert ran.lines == []


def test_a_tool_in_a_pipe_shows_no_bar(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    name, *flags = writing(make_topic(tool, new_name("t")), 300)
    ran = subprocess.run(
        [sys.executable, "-m", "tidelog", name, "--bootstrap-server", bootstrap, *flags],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    (total,) = ran.stdout.splitlines()
    assert total.startswith("300 records sent, ")


def test_ctrl_c_takes_the_bar_away_and_gives_the_cursor_back(
    bootstrap: str, new_name: NewName, tool: Tool
) -> None:
    topic = make_topic(tool, new_name("t"))

    def interrupt(process: subprocess.Popen[bytes], terminal: Terminal) -> None:
        eventually(lambda: "━" in terminal.shown, "a bar", timeout=30)
        process.send_signal(signal.SIGINT)

    ran = on_a_terminal(
        *(bootstrap, "consumer-perf-test", "--topic", topic, "--num-records", "5"),
        *("--timeout", "60000"),
        meanwhile=interrupt,
    )
    assert ran.exit_code == 130, ran.terminal
    assert ran.terminal.rfind(SHOW_CURSOR) > ran.terminal.rfind(HIDE_CURSOR) >= 0
    assert ran.terminal.rfind(CLEAR_LINE) > ran.terminal.rfind("━")
    assert "Traceback" not in ran.terminal
