"""A pytest plugin for runs against another broker: tests that no broker takes part in are left out, and at
the end everything that was left out is counted and listed with its reason.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

BROKERS = frozenset({"bootstrap", "own_broker"})
NO_BROKER = "no broker but ours, or none at all, takes part"
_PREFIX = "Skipped: "


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not BROKERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.skip(NO_BROKER))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        _, _, reason = report.longrepr
        reasons[reason.removeprefix(_PREFIX)].append(report.nodeid)
    total = sum(map(len, reasons.values()))
    terminalreporter.section(f"{total} tests were left out")
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"{len(tests)}: {reason}")
        names = tests if reason != NO_BROKER else _by_file(tests)
        for name in sorted(names):
            terminalreporter.write_line(f"    {name}")


def _by_file(tests: list[str]) -> list[str]:
    files: defaultdict[str, int] = defaultdict(int)
    for test in tests:
        files[test.partition("::")[0]] += 1
    return [f"{file}: {count}" for file, count in files.items()]
