"""The report: what it counts, what it shows, and that nothing of the tables can break the page."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.spark import report_tables as made
from tidelog.spark.pipelines import report, report_svg
from tidelog.spark.pipelines.report_facts import ALERTS_SHOWN, Facts, gather
from tidelog.spark.pipelines.report_readers import LocalReader, SparkReader, TablesChanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NASTY = "<script>alert('x')</script>&\"' \u202e"
VOID = {"meta", "rect", "line", "br"}


class Page(HTMLParser):
    """Reads a page as a browser would, and complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID or tag == "rect":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open[-1] in VOID and self._open[-1] != tag:
            self._open.pop()
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another one"

    def handle_data(self, data: str) -> None:
        self.text += data


def section(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">(.*?)</section>', page, re.DOTALL)
    assert found is not None, f"the page has no section {name}"
    return found[1]


def written(data: Path) -> str:
    return report.write(data, data / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("full")
    made.fill(data, seed=7)
    return data


@pytest.fixture(scope="module")
def page(full: Path) -> str:
    return written(full)


def test_every_plot_is_there_twice_for_wide_windows_and_for_phones(page: str) -> None:
    for label in (
        "Events per minute by kind",
        "Swipes per minute: right above the line, left below",
        "Users by balance",
    ):
        drawings = re.findall(rf'<svg class="plot (\w+)"[^>]*aria-label="{label}"', page)
        assert drawings == ["wide", "narrow"], label
    for name in ("events", "swipes", "alerts", "regions", "balances", "quarantine"):
        assert "<svg" in section(page, name)


def test_the_page_is_whole_and_loads_nothing(page: str) -> None:
    read = Page(page)
    assert read.tags["script"] == read.tags["link"] == read.tags["img"] == 0
    assert all(
        value is None or value.startswith("#") for name, value in read.attributes if name in ("href", "src")
    )
    assert "http:" not in page
    assert "https:" not in page
    assert "url(" not in page
    assert "@import" not in page


def test_light_and_dark_are_both_there(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    assert "color-scheme: light dark" in page


def test_the_columns_of_the_plot_add_up_to_the_events(full: Path, page: str) -> None:
    facts = report.facts(full)
    total = sum(counts.total() for counts in facts.events.values())
    assert facts.event_count == total > 40_000
    assert f"<b>{total:,}</b><span>events</span>" in page
    span = facts.span()
    assert span is not None
    assert span[1] - span[0] == made.MINUTES - 1
    for size in (report_svg.WIDE, report_svg.NARROW):
        columns = report_svg.TimeColumns.over(*span, size.columns)
        assert columns.count <= size.columns + 1
        drawn = sum(sum(columns.rates(counts)) * columns.step / 60 for counts in facts.events.values())
        assert drawn == pytest.approx(total)


def test_alerts_are_counted_by_rule_and_show_their_evidence(page: str) -> None:
    alerts = section(page, "alerts")
    assert re.search(r"one-device</td>.*?>60</td>", alerts)
    assert f"the newest {ALERTS_SHOWN} of 60" in alerts
    assert alerts.index("u59</td>") < alerts.index("u58</td>"), "the newest is not first"
    assert "<summary>accounts 28, switches 31, users (2)</summary>" in alerts
    assert "<dt>users</dt><dd>u22, u9</dd>" in alerts
    assert "<li><dl><dt>id</dt><dd>u1</dd><dt>minute</dt><dd>3</dd></dl></li>" in alerts


def test_evidence_of_any_shape_is_shown(tmp_path: Path) -> None:
    rows = [
        made.alert("rule", "d1", 1, "not JSON {"),
        made.alert("rule", "d2", 2, [1, 2]),
        made.alert("rule", "d3", 3, {"deep": {"a": [{"b": None}], "c": True}, "none": []}),
        {**made.alert("rule", "d4", 4, ""), "evidence": None, "window_end": None},
    ]
    made.write_table(tmp_path, "device_alerts", rows, made.ALERT, "2026-03-14")
    page = written(tmp_path)
    Page(page)
    assert "not JSON {" in page
    assert "<dt>c</dt><dd>True</dd>" in page


def test_alerts_of_a_rule_are_found_in_files_that_have_none_of_it_too(tmp_path: Path) -> None:
    for minute, rule in enumerate(("ring", "one-device", "ring", "ring")):
        made.write_table(tmp_path, "invite_alerts", [made.alert(rule, f"u{minute}", minute, {})], made.ALERT)
    facts = report.facts(tmp_path)
    assert [alert.subject for alert in facts.alerts if alert.rule == "ring"] == ["u3", "u2", "u0"]
    assert [alert.subject for alert in facts.alerts if alert.rule == "one-device"] == ["u1"]


def test_swipes_of_ads_regions_and_quarantine_are_counted(full: Path, page: str) -> None:
    facts = report.facts(full)
    assert sum(ad.left + ad.right for ad in facts.ads) < facts.event_count
    assert facts.ads == sorted(facts.ads, key=lambda ad: -(ad.left + ad.right))
    assert facts.regions.total() == 900
    assert facts.bad_count == 164
    quarantine = section(page, "quarantine")
    assert re.search(r"field ts is missing.*?ml_ad_exposure_log</td><td class=\"n\">120</td>", quarantine)
    assert r"\xff&lt;nonsense&gt;" in quarantine
    assert "unknown" in section(page, "regions")


def test_of_a_keyed_table_only_the_newest_row_of_a_user_counts(tmp_path: Path) -> None:
    made.write_table(tmp_path, "balances", [made.balance("u1", 900), made.balance("u2", 20)], made.BALANCE)
    made.write_table(tmp_path, "balances", [made.balance("u1", 500)], made.BALANCE)
    made.write_table(tmp_path, "balances", [made.balance("u1", 30)], made.BALANCE)
    facts = report.facts(tmp_path)
    assert sorted(facts.balances) == [20, 30]
    assert [row["user_id"] for row in facts.richest] == ["u1", "u2"]


def test_files_that_are_not_committed_are_left_out(tmp_path: Path) -> None:
    table = made.write_table(tmp_path, "logins", [made.event("logins", 1, made.START)], made.EVENT)
    file = Path(table.file_uris()[0])
    shutil.copy(file, file.with_name("of-a-dead-task.parquet"))
    assert report.facts(tmp_path).event_count == 1


def test_a_file_that_is_vacuumed_makes_the_reader_begin_again(tmp_path: Path) -> None:
    rows = [made.event("logins", n, made.START) for n in (1, 2)]
    for row in rows:
        made.write_table(tmp_path, "logins", [row], made.EVENT)
    reader = LocalReader(tmp_path / "tables")
    assert reader.columns("logins")
    table = DeltaTable(str(tmp_path / "tables" / "logins"))
    table.optimize.compact()
    assert reader.per_minute("logins").total() == 2, "an older version is whole while its files exist"
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(TablesChanged):
        reader.per_minute("logins")
    assert report.facts(tmp_path).event_count == 2


def test_empty_tables_say_what_would_fill_them(tmp_path: Path) -> None:
    page = written(tmp_path)
    Page(page)
    for name, pipeline in (
        ("events", "collect"),
        ("swipes", "collect"),
        ("alerts", "device-watch invite-watch"),
        ("regions", "region"),
        ("balances", "earnings"),
    ):
        assert f"tidelog pipeline run {pipeline}" in section(page, name)
        assert "<svg" not in section(page, name)
    assert "No bad events" in section(page, "quarantine")


def test_one_event_of_one_kind_makes_a_page(tmp_path: Path) -> None:
    made.write_table(tmp_path, "logins", [made.event("logins", 1, made.START)], made.EVENT)
    made.write_table(tmp_path, "exposures", [], made.EVENT)
    made.write_table(tmp_path, "balances", [made.balance("u1", 0)], made.BALANCE)
    page = written(tmp_path)
    Page(page)
    assert "1 events from 2026-03-14 08:00 to 2026-03-14 08:00" in page
    assert "<code>exposures</code>" in section(page, "events")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist: name the data folder"):
        report.write(tmp_path / "nowhere", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_nothing_of_the_tables_is_taken_for_markup(tmp_path: Path) -> None:
    data = tmp_path / "a<b>&c"
    data.mkdir()
    made.write_table(data, "device_alerts", [made.alert(NASTY, NASTY, 1, {NASTY: [NASTY]})], made.ALERT)
    made.write_table(data, "invite_alerts", [made.alert("r", "s", 1, NASTY)], made.ALERT)
    made.write_table(data, "left_swipes", [made.event("l", 1, made.START, NASTY)], made.EVENT)
    made.write_table(data, "user_regions", [made.region(NASTY, NASTY, NASTY)], made.REGION)
    made.write_table(data, "balances", [made.balance(NASTY, 5)], made.BALANCE)
    made.write_table(data, "quarantine", [made.bad(NASTY, 1, NASTY, NASTY.encode())], made.QUARANTINE)
    page = written(data)
    read = Page(page)
    assert read.tags["script"] == 0
    assert "<script" not in page
    assert read.text.count("<script>alert('x')</script>") >= 9
    assert "a<b>" not in page


def test_a_few_events_far_away_do_not_stretch_the_axis(tmp_path: Path) -> None:
    rows = [made.event("e", n, made.START + timedelta(seconds=n)) for n in range(3600)]
    far = [datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=UTC)]
    rows += [made.event("e", n, when) for n, when in enumerate(far)]
    made.write_table(tmp_path, "exposures", rows, made.EVENT)
    facts = report.facts(tmp_path)
    first, last = facts.span() or (0, 0)
    assert last - first == 59
    assert "2 more are far from these times and are not drawn" in written(tmp_path)


def test_one_clock_that_is_days_ahead_leaves_the_others_their_room(tmp_path: Path) -> None:
    rows = [made.event("e", n, made.START + timedelta(minutes=n)) for n in range(1440)]
    rows += [made.event("e", 1440, made.START + timedelta(days=12))]
    made.write_table(tmp_path, "exposures", rows, made.EVENT)
    first, last = report.facts(tmp_path).span() or (0, 0)
    assert last - first == 1439
    assert "1 more are far from these times and are not drawn" in written(tmp_path)


@pytest.mark.parametrize(
    ("far", "told"),
    [
        (-1_000_000_000_000, "1 with less than -1,596 are not drawn."),
        (1_000_000_000_000, "1 with more than 1,600 are not drawn."),
    ],
)
def test_one_balance_far_from_all_others_is_told_and_not_drawn(tmp_path: Path, far: int, told: str) -> None:
    rows = [made.balance(f"u{n}", n) for n in range(404)]
    made.write_table(tmp_path, "balances", [*rows, made.balance("far", far)], made.BALANCE)
    page = written(tmp_path)
    assert told in page
    assert "T<" not in page


def test_marks_of_an_axis_are_short() -> None:
    shown = [report_svg.short(value) for value in (0, 1500, 2_000_000, -3e9, -1e12, 25e12)]
    assert shown == ["0", "1.5k", "2M", "-3G", "-1T", "25T"]


def test_json_that_breaks_off_here_or_there_is_one_reason(tmp_path: Path) -> None:
    error = "the value is not valid JSON, from byte {} on".format
    rows = [made.bad("t", n, error(n % 7), b"{") for n in range(20)] + [made.bad("t", 20, "too old", b"{}")]
    made.write_table(tmp_path, "quarantine", rows, made.QUARANTINE)
    facts = report.facts(tmp_path)
    assert [(bad.reason, bad.count, bad.sample) for bad in facts.bad] == [
        ("the value is not valid JSON", 20, b"{"),
        ("too old", 1, b"{}"),
    ]
    assert (facts.bad_reasons, facts.bad_count) == (2, 21)


def test_events_at_the_ends_of_the_calendar_alone_can_be_drawn(tmp_path: Path) -> None:
    far = [datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=UTC)]
    made.write_table(tmp_path, "exposures", [made.event("e", n, t) for n, t in enumerate(far)], made.EVENT)
    Page(written(tmp_path))


def test_local_tables_need_no_spark(full: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from tidelog.spark.pipelines import report; report.write(sys.argv[1], sys.argv[2]); "
        "assert 'pyspark' not in sys.modules"
    )
    out = tmp_path / "new folder" / "report.html"
    subprocess.run([sys.executable, "-c", script, full.as_uri(), out], check=True, timeout=60)
    assert out.stat().st_size > 50_000


def test_spark_and_the_files_give_the_same_numbers(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    from tidelog.spark.tables import Tables

    source = tmp_path / "source"
    made.fill(source, seed=3)
    tables = Tables(spark, str(tmp_path / "data" / "tables"))
    for name in ("left_swipes", "device_alerts", "quarantine"):
        rows = (
            Tables(spark, str(source / "tables")).read(name).withColumn("day", f.to_date(f.lit("2026-03-14")))
        )
        tables.write(rows, name, writer="test", batch=0, partition_by=("day",))
    balances = Tables(spark, str(source / "tables")).read("balances").orderBy("user_id")
    for batch, changed in enumerate(
        (balances, balances.limit(9).withColumn("balance", f.lit(7).cast("long")))
    ):
        tables.write(changed, "balances", writer="test", batch=batch, keys=("user_id",))
    local, by_spark = report.facts(tmp_path / "data"), gather(SparkReader(tables))
    assert local.event_count == by_spark.event_count > 4000
    assert len(local.balances) == 2000
    assert comparable(local) == comparable(by_spark)


def comparable(facts: Facts) -> dict[str, object]:
    """Without what may come in any order: rows of equal numbers, and the zone that times are given in."""
    found: dict[str, object] = asdict(facts)
    found["balances"] = sorted(facts.balances)
    found["richest"] = [row["balance"] for row in facts.richest]
    found["alerts"] = sorted((alert.rule, alert.subject, alert.raised_at) for alert in facts.alerts)
    found["ads"] = Counter(ad.left + ad.right for ad in facts.ads)
    found["bad"] = Counter((bad.topic, bad.reason, bad.count) for bad in facts.bad)
    return found


@given(st.floats(-1e15, 1e15), st.floats(0, 1e15), st.integers(1, 12))
def test_marks_are_round_evenly_spaced_and_enclose_the_values(low: float, span: float, count: int) -> None:
    high = low + span
    marks = report_svg.ticks(low, high, count)
    assert 2 <= len(marks) <= count + 3
    step = marks[1] - marks[0]
    assert marks[0] <= low + step * 1e-6
    assert marks[-1] >= high - step * 1e-6
    if low < 0 < high:
        assert any(math.isclose(mark, 0, abs_tol=step * 1e-6) for mark in marks)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=200), st.integers(1, 40))
def test_every_value_is_in_one_column_of_the_distribution(values: list[int], columns: int) -> None:
    bins = report_svg.Bins.of(values, columns)
    assert sum(bins.counts) == len(values)
    assert len(bins.edges) == len(bins.counts) + 1
    assert len(bins.counts) <= columns + 3


@given(st.integers(0, 4_000_000_000), st.integers(0, 4_000_000_000), st.integers(2, 120))
def test_columns_of_time_cover_every_minute_and_are_never_too_many(first: int, span: int, count: int) -> None:
    columns = report_svg.TimeColumns.over(first, first + span, count)
    assert columns.count <= count + 1
    assert columns.first <= first * 60
    assert columns.last >= (first + span + 1) * 60
    assert sum(columns.rates({first: 1, first + span: 1})) * columns.step / 60 == pytest.approx(
        2 if span else 1
    )


def test_numbers_are_written_for_people() -> None:
    assert [report_svg.number(value) for value in (0, 1234567, 12.34, 0.126, -5)] == [
        "0",
        "1,234,567",
        "12",
        "0.13",
        "-5",
    ]
    assert [report_svg.short(value) for value in (0, 950, 1500, 2e6, 3.5e9)] == [
        "0",
        "950",
        "1.5k",
        "2M",
        "3.5G",
    ]
