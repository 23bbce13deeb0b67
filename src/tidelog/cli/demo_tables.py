"""Prints the tables of the pipelines in the demo: counts, alerts with evidence, balances and regions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidelog.spark.pipelines import report
from tidelog.spark.pipelines.events import INVITES, TASKS
from tidelog.spark.pipelines.generator import Truth
from tidelog.spark.pipelines.report_facts import EVENT_TABLES, Alert, Facts, text
from tidelog.spark.pipelines.report_page import IN_THE_WINDOW

TABLES = "Tables"
ALERTS_OF_A_RULE = 2
BALANCES_SHOWN = 5
COUNTRIES_SHOWN = 6
EVIDENCE_WIDTH = 160
NAMES_SHOWN = 2


def show(data: Path, page: Path, truth: Truth | None, records: Mapping[str, int]) -> None:
    """Print the tables, and write the report.

    `truth` describes the events, if the demo wrote them; `records` has the number of records of each topic.
    """
    planted = {} if truth is None else truth.cheaters
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    facts = report.facts(data)
    for table in (counts(facts), alerts(facts, planted), balances(facts), regions(facts)):
        title, table.title = table.title, None  # a table wraps its title to its width
        console.print()
        console.print(title, style="bold")
        console.print(table)
        if title == TABLES:
            console.print(summed_up(facts, records))
    written = report.write(data, page)
    console.print("\nThe report, with plots of all this:")
    console.print(Text(f"  {written}"), soft_wrap=True)


def made(title: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, box=None, pad_edge=False)
    for name, justify in columns:
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        # Cells are plain text: brackets in them are not markup.
        table.add_row(*(Text(cell) for cell in row))
    return table


def counts(facts: Facts) -> Table:
    rows = [(name, f"{facts.events[name].total():,}") for name in EVENT_TABLES if name in facts.events]
    rows.append(("quarantine", f"{facts.bad_count:,}"))
    for pipeline, name in (("device-watch", "device_alerts"), ("invite-watch", "invite_alerts")):
        rows.append((name, f"{sum(n for (of, _), n in facts.rules.items() if of == pipeline):,}"))
    rows += [("user_regions", f"{facts.regions.total():,}"), ("balances", f"{len(facts.balances):,}")]
    rows += [("daily_earnings", f"{facts.days_earned:,}"), ("task_progress", f"{facts.tasks.total():,}")]
    return made(TABLES, (("table", ""), ("rows", "right")), rows)


def summed_up(facts: Facts, records: Mapping[str, int]) -> str:
    """A sentence with the number of records in the tables, in quarantine and in findings."""
    total, kept, broken = sum(records.values()), facts.event_count, facts.bad_count
    only_found = sum(count for topic, count in records.items() if topic in (INVITES.topic, TASKS.topic))
    text = (
        f"{total:,} records were read: {kept:,} are in the first {len(EVENT_TABLES)} tables, {broken:,} "
        f"broken ones are in quarantine, and {only_found:,} are invites and tasks, the input of alerts and "
        "of task_progress."
    )
    missing = total - kept - broken - only_found
    return text if missing == 0 else f"{text} {missing:,} are not accounted for."


def alerts(facts: Facts, planted: Mapping[str, Sequence[str]]) -> Table:
    rows: list[tuple[str, ...]] = []
    for (pipeline, rule), count in facts.rules.most_common():
        found = [alert for alert in facts.alerts if (alert.pipeline, alert.rule) == (pipeline, rule)]
        known = set(planted.get(rule, ()))
        caught = len(known & {alert.subject for alert in found})
        for place, alert in enumerate(found[:ALERTS_OF_A_RULE]):
            truth = f"{caught} of {len(known)}" if known else ""
            start = (rule, f"{count:,}", truth) if place == 0 else ("", "", "")
            rows.append((*start, alert.subject, evidence(alert)))
    columns = (("rule", ""), ("alerts", "right"), ("planted", "right"), ("for example", ""), ("evidence", ""))
    return made("Alerts", columns, rows)


def evidence(alert: Alert) -> str:
    value = alert.evidence
    if isinstance(value, Mapping):
        shown = {name: item for name, item in value.items() if name not in IN_THE_WINDOW}
        words = ", ".join(f"{name.replace('_', ' ')} {in_short(item)}" for name, item in shown.items())
    else:
        words = str(value)
    return words if len(words) <= EVIDENCE_WIDTH else words[: EVIDENCE_WIDTH - 2] + " …"


def in_short(value: object) -> str:
    """A value of the evidence; of a long list the first items."""
    if isinstance(value, list):
        named = [str(item) for item in value[:NAMES_SHOWN]]
        more = len(value) - len(named)
        return f"{' '.join(named)} and {more} more" if more else " ".join(named)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def balances(facts: Facts) -> Table:
    rows = [
        (text(row["user_id"]), f"{int(str(row['balance'])):,}", f"{int(str(row['events'])):,}")
        for row in facts.richest[:BALANCES_SHOWN]
    ]
    title = f"Balances: the largest of {len(facts.balances):,}, {sum(facts.balances):,} units in all"
    return made(title, (("user", ""), ("balance", "right"), ("events", "right")), rows)


def regions(facts: Facts) -> Table:
    users: dict[str, int] = {}
    for (country, _), count in facts.regions.items():
        users[country or "unknown"] = users.get(country or "unknown", 0) + count
    ordered = sorted(users.items(), key=lambda item: -item[1])[:COUNTRIES_SHOWN]
    title = f"Regions: the countries with most users of {len(users):,}"
    return made(title, (("country", ""), ("users", "right")), [(name, f"{n:,}") for name, n in ordered])
