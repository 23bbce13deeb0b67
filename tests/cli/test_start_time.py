"""What a tool imports: a command that asks one thing is quick, and heavy libraries load only when used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.client_tools import NewName, Tool, make_topic, tool

__all__ = ["tool"]

HEAVY = {
    "pyarrow", "duckdb", "rich", "pandas", "polars", "fastavro", "google.protobuf", "cryptography", "jwt",
    "yaml", "starlette", "pyspark", "tidelog.server", "tidelog.storage", "tidelog.spark",
}  # fmt: skip

PROBE = """
import json, sys
from tidelog.cli.main import main
try:
    main(sys.argv[1:], standalone_mode=False)
finally:
    sys.stderr.write("\\n" + json.dumps([sorted(sys.modules), len(sys.modules)]))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "--list"),
        ("topics", "--describe", "--topic", "TOPIC", "--output", "table"),
        ("consumer-groups", "--list"),
        ("health",),
        ("consume", "TOPIC", "-o", ":end", "-f", "%v"),
        ("get-offsets", "--topic", "TOPIC"),
        ("profile", "list"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_asks_one_thing_imports_little(
    bootstrap: str, tool: Tool, new_name: NewName, arguments: tuple[str, ...]
) -> None:
    topic = make_topic(tool, new_name("t"))
    given = [topic if argument == "TOPIC" else argument for argument in arguments]
    if given[0] != "profile":
        given += ["--bootstrap-server", bootstrap]
    done = subprocess.run([sys.executable, "-c", PROBE, *given], capture_output=True, text=True, timeout=120)
    modules, count = json.loads(done.stderr.rpartition("\n")[2])
    assert HEAVY & set(modules) == set()
    assert count < 900, "each module costs a fraction of a millisecond"
