"""The report as one page of HTML: its words, tables and style. It loads no other files and has no script.

Every value from a table is escaped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import median

from tidelog.spark.pipelines import report_svg as svg
from tidelog.spark.pipelines.report_facts import EVENT_TABLES, Alert, Facts, text
from tidelog.spark.pipelines.report_style import STYLE

ALERTS_OPEN = 5
IN_THE_WINDOW = ("first", "last")
LEFT_COLOUR, RIGHT_COLOUR = 1, 2
REGIONS_OF_A_COUNTRY = 6
COUNTRIES_SHOWN = 12
SAMPLE_BYTES = 600
TALL_TAIL = 4  # the distribution ends at this multiple of the 99th (or the first) percentile


def page(facts: Facts, source: str, made_at: str) -> str:
    """The whole report. `source` is the folder of the tables."""
    sections = [
        _section("events", "Events per minute", events(facts)),
        _section("swipes", "Swipes: left against right", swipes(facts)),
        _section("alerts", "Alerts", alerts(facts)),
        _section("regions", "Regions", regions(facts)),
        _section("balances", "Balances", balances(facts)),
        _section("quarantine", "Quarantine", quarantine(facts)),
        _section("quality", "Data quality", quality(facts)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>tidelog: pipelines</title>"
        f"<style>{STYLE}</style></head>\n<body><main>\n"
        "<header><h1>What the pipelines found</h1>"
        f"<p>Made {escape(made_at)} UTC from the tables in <code>{escape(source)}</code>.</p></header>\n"
        f"{_headline(facts)}\n{''.join(sections)}"
        "<footer>All times are the times of events, in UTC. "
        "Point at a column to read its numbers.</footer>\n</main></body></html>\n"
    )


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>\n{content}</section>\n'


def _paragraph(words: str, style: str = "") -> str:
    """A fixed sentence. Values in it must be escaped already."""
    return f'<p class="{style}">{words}</p>\n' if style else f"<p>{words}</p>\n"


def _nothing(table: str, pipeline: str) -> str:
    return _paragraph(
        f"Nothing yet: the table <code>{table}</code> has no rows. "
        f"<code>tidelog pipeline run {pipeline}</code> fills it.",
        "nothing",
    )


def _headline(facts: Facts) -> str:
    numbers = [
        ("events", svg.number(facts.event_count), "#events"),
        ("alerts", svg.number(facts.rules.total()), "#alerts"),
        ("users with a region", svg.number(facts.regions.total()), "#regions"),
        ("users with a balance", svg.number(len(facts.balances)), "#balances"),
        ("bad events set aside", svg.number(facts.bad_count), "#quarantine"),
    ]
    tiles = "".join(
        f'<a class="tile" href="{target}"><b>{value}</b><span>{name}</span></a>'
        for name, value, target in numbers
    )
    return f'<nav class="tiles">{tiles}</nav>'


def _legend(series: Sequence[tuple[str, int, str]]) -> str:
    items = "".join(
        f'<li><svg class="key" viewBox="0 0 10 10" aria-hidden="true"><rect class="c{colour}" width="10" '
        f'height="10" rx="2"/></svg>{escape(name)} <b>{value}</b></li>'
        for name, colour, value in series
    )
    return f'<ul class="legend">{items}</ul>\n'


def _both(draw: Callable[[svg.Size], str]) -> str:
    """A plot for wide windows and one for phones; the style shows the one that fits."""
    return f"<figure>{draw(svg.WIDE)}{draw(svg.NARROW)}</figure>\n"


def _table(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], style: str = "") -> str:
    """A table whose cells are HTML. A head has a title and the style of its column."""
    styles = [f' class="{name}"' if name else "" for _, name in heads]
    top = "".join(f"<th{look}>{title}</th>" for (title, _), look in zip(heads, styles, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{look}>{cell}</td>' for cell, look in zip(row, styles, strict=True))}</tr>"
        for row in rows
    )
    look = f' class="{style}"' if style else ""
    return (
        f'<div class="scroll"><table{look}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>\n'
    )


def events(facts: Facts) -> str:
    span = facts.span()
    if span is None:
        return _nothing("exposures", "collect")
    kinds = sorted(facts.events, key=lambda table: -facts.events[table].total())
    colours = {table: place for place, table in enumerate(EVENT_TABLES)}

    def draw(size: svg.Size) -> str:
        columns = svg.TimeColumns.over(*span, size.columns)
        series = [
            svg.Series(EVENT_TABLES[table], colours[table], columns.rates(facts.events[table]))
            for table in kinds
        ]
        return svg.stacked(size, "Events per minute by kind", columns, series)

    legend = [(EVENT_TABLES[t], colours[t], svg.number(facts.events[t].total())) for t in kinds]
    return _spoken_span(facts, span) + _both(draw) + _legend(legend) + _missing_kinds(facts)


def _spoken_span(facts: Facts, span: tuple[int, int]) -> str:
    first, last = span
    inside = sum(
        count
        for counts in facts.events.values()
        for minute, count in counts.items()
        if first <= minute <= last
    )
    minutes = last - first + 1
    words = (
        f"{svg.number(inside)} events from {svg.moment(first * 60)} to {svg.moment(last * 60)}: "
        f"{svg.number(round(inside / minutes, 1))} a minute on average."
    )
    outside = facts.event_count - inside
    if outside:
        words += f" {svg.number(outside)} more are far from these times and are not drawn."
    return _paragraph(words)


def _missing_kinds(facts: Facts) -> str:
    empty = [table for table in EVENT_TABLES if table in facts.missing]
    if not empty:
        return ""
    names = ", ".join(f"<code>{table}</code>" for table in empty)
    return _paragraph(f"No rows yet in {names}.", "nothing")


def swipes(facts: Facts) -> str:
    left = facts.events.get("left_swipes", Counter[int]())
    right = facts.events.get("right_swipes", Counter[int]())
    span = facts.span()
    if span is None or not (left or right):
        return _nothing("left_swipes</code> or <code>right_swipes", "collect")

    def draw(size: svg.Size) -> str:
        columns = svg.TimeColumns.over(*span, size.columns)
        return svg.mirrored(
            size,
            "Swipes per minute: right above the line, left below",
            columns,
            svg.Series("right", RIGHT_COLOUR, columns.rates(right)),
            svg.Series("left", LEFT_COLOUR, columns.rates(left)),
        )

    total = left.total() + right.total()
    words = (
        f"{100 * left.total() / total:.1f} % went left, to the advertiser; "
        f"{100 * right.total() / total:.1f} % went right, to the phone."
    )
    legend = [
        ("right (above)", RIGHT_COLOUR, svg.number(right.total())),
        ("left (below)", LEFT_COLOUR, svg.number(left.total())),
    ]
    return _paragraph(words) + _both(draw) + _legend(legend) + _ads(facts)


def _ads(facts: Facts) -> str:
    if not facts.ads:
        return ""
    most = max(max(ad.left, ad.right) for ad in facts.ads)
    rows = [
        (
            escape(ad.ad),
            svg.number(ad.left),
            svg.opposed(ad.left / most, ad.right / most, LEFT_COLOUR, RIGHT_COLOUR),
            svg.number(ad.right),
            f"{100 * ad.left / (ad.left + ad.right):.0f} %",
        )
        for ad in facts.ads
    ]
    heads = (("advertisement", ""), ("left", "n"), ("", "bars"), ("right", ""), ("went left", "n"))
    title = f"The {len(facts.ads)} most swiped of {svg.number(facts.ad_count)} advertisements"
    return f"<h3>{title}</h3>{_table(heads, rows)}"


def alerts(facts: Facts) -> str:
    if not facts.rules:
        return _nothing("device_alerts</code> or <code>invite_alerts", "device-watch invite-watch")
    most = max(facts.rules.values())
    rows = [
        (escape(rule), escape(pipeline), svg.number(count), svg.bar(count / most, 3))
        for (pipeline, rule), count in facts.rules.most_common()
    ]
    heads = (("rule", ""), ("pipeline", "soft extra"), ("alerts", "n"), ("", "bars"))
    return _table(heads, rows) + "".join(_alerts_of(facts, *key) for key, _ in facts.rules.most_common())


def _alerts_of(facts: Facts, pipeline: str, rule: str) -> str:
    count = facts.rules[pipeline, rule]
    shown = [alert for alert in facts.alerts if (alert.pipeline, alert.rule) == (pipeline, rule)]
    what = f"the newest {len(shown)} of {svg.number(count)}" if count > len(shown) else svg.number(count)
    heads = (("subject", "who"), ("window", "when"), ("evidence", ""))
    first, more = shown[:ALERTS_OPEN], shown[ALERTS_OPEN:]
    title = f'<h3>{escape(rule)} <span class="soft">{what}</span></h3>'
    open_part = title + _table(heads, map(_alert_row, first), "alerts")
    if not more:
        return open_part
    rest = _table(heads, map(_alert_row, more), "alerts")
    return f'{open_part}<details class="more"><summary>{len(more)} more</summary>{rest}</details>\n'


def _alert_row(alert: Alert) -> tuple[str, ...]:
    start, end = alert.window_start, alert.window_end
    window = f"{start} to {end[11:] if end[:10] == start[:10] else end}" if end else start
    evidence = f"<summary>{escape(_in_short(alert.evidence))}</summary>{_evidence(alert.evidence)}"
    return escape(alert.subject), escape(window), f"<details>{evidence}</details>"


def _in_short(evidence: object) -> str:
    """The numbers and texts of the evidence in one line; a list is shown by its length."""
    if not isinstance(evidence, Mapping):
        words = json.dumps(evidence, ensure_ascii=False) if isinstance(evidence, list) else str(evidence)
    else:
        shown = {name: value for name, value in evidence.items() if name not in IN_THE_WINDOW}
        words = ", ".join(f"{name.replace('_', ' ')} {_item_in_short(item)}" for name, item in shown.items())
    return words if len(words) <= 90 else words[:88] + " …"


def _item_in_short(value: object) -> str:
    if isinstance(value, list):
        return f"({len(value)})"
    if isinstance(value, Mapping):
        return "{…}"
    return svg.number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _evidence(evidence: object) -> str:
    """The full evidence, whatever its structure."""
    if isinstance(evidence, Mapping):
        items = "".join(
            f"<dt>{escape(str(name))}</dt><dd>{_evidence(value)}</dd>" for name, value in evidence.items()
        )
        return f"<dl>{items}</dl>"
    if isinstance(evidence, list):
        if all(not isinstance(item, list | Mapping) for item in evidence):
            return escape(", ".join(str(item) for item in evidence)) or "none"
        return f"<ol>{''.join(f'<li>{_evidence(item)}</li>' for item in evidence)}</ol>"
    if isinstance(evidence, float | int) and not isinstance(evidence, bool):
        return escape(str(evidence))
    return escape(text(evidence))


def regions(facts: Facts) -> str:
    if not facts.regions:
        return _nothing("user_regions", "region")
    countries: Counter[str] = Counter()
    for (country, _), count in facts.regions.items():
        countries[country] += count
    users, most = facts.regions.total(), max(countries.values())
    rows = [
        (
            escape(country or "unknown"),
            svg.number(count),
            svg.bar(count / most, 4),
            f"{100 * count / users:.1f} %",
            escape(_regions_of(facts, country)),
        )
        for country, count in countries.most_common(COUNTRIES_SHOWN)
    ]
    heads = (("country", ""), ("users", "n"), ("", "bars"), ("share", "n"), ("regions", "soft extra"))
    kinds = ", ".join(
        f"{svg.number(count)} {escape(kind or 'unknown').lower().replace('_', ' ')}"
        for (kind,), count in facts.number_types.most_common()
    )
    words = f"{svg.number(users)} users in {svg.number(len(countries))} countries, by their numbers: {kinds}."
    if len(countries) > COUNTRIES_SHOWN:
        words += f" The {COUNTRIES_SHOWN} with most users:"
    return _paragraph(words) + _table(heads, rows)


def _regions_of(facts: Facts, country: str) -> str:
    inside = Counter({region: n for (c, region), n in facts.regions.items() if c == country and region})
    words = ", ".join(f"{region} {svg.number(n)}" for region, n in inside.most_common(REGIONS_OF_A_COUNTRY))
    more = len(inside) - REGIONS_OF_A_COUNTRY
    return f"{words} and {more} more" if more > 0 else words


def balances(facts: Facts) -> str:
    if not facts.balances:
        return _nothing("balances", "earnings")
    ordered = sorted(facts.balances)
    total, edge = sum(ordered), _edge(ordered)
    drawn = [value for value in ordered if -edge <= value <= edge]
    words = (
        f"{svg.number(total)} units in all; half of the {svg.number(len(ordered))} users have "
        f"{svg.number(median(ordered))} or more, the richest {svg.number(ordered[-1])}"
    )
    below = sum(1 for value in ordered if value < 0)
    words += f"; {svg.number(below)} are below zero." if below else "."
    if more := sum(1 for value in ordered if value > edge):
        words += f" {svg.number(more)} with more than {svg.number(edge)} are not drawn."
    if less := sum(1 for value in ordered if value < -edge):
        words += f" {svg.number(less)} with less than {svg.number(-edge)} are not drawn."

    def draw(size: svg.Size) -> str:
        bins = svg.Bins.of(drawn, size.columns // 3)
        return svg.distribution(size, "Users by balance", bins, 0, "users", "balance, in units of credit")

    return _paragraph(words) + _both(draw) + _richest(facts)


def _edge(ordered: Sequence[int]) -> int:
    """The range of balances to draw. A few outliers would leave a single column for all others."""
    low, high = ordered[len(ordered) // 100], ordered[len(ordered) * 99 // 100]
    usual = max(abs(low), abs(high))
    return usual * TALL_TAIL if usual else max(abs(ordered[0]), abs(ordered[-1]))


def _richest(facts: Facts) -> str:
    found = [(row, int(str(row["balance"]))) for row in facts.richest]
    most = max(1, max((balance for _, balance in found), default=1))
    rows = [
        (
            escape(text(row["user_id"])),
            svg.number(balance),
            svg.bar(balance / most, 0),
            svg.number(int(str(row["events"]))),
            escape(text(row["last_event_at"])),
        )
        for row, balance in found
    ]
    heads = (("user", ""), ("balance", "n"), ("", "bars"), ("events", "n"), ("last event", "when extra"))
    return f"<h3>The {len(rows)} largest balances</h3>{_table(heads, rows)}"


def quarantine(facts: Facts) -> str:
    if not facts.bad_count:
        return _paragraph(
            "No bad events: every event that <code>collect</code> read matches its schema.", "nothing"
        )
    most = max(bad.count for bad in facts.bad)
    rows = [
        (
            escape(bad.reason) + _sample(bad.sample),
            escape(bad.topic),
            svg.number(bad.count),
            svg.bar(bad.count / most, 5),
        )
        for bad in facts.bad
    ]
    heads = (("reason", ""), ("topic", "soft extra"), ("events", "n"), ("", "bars"))
    share = 100 * facts.bad_count / (facts.bad_count + facts.event_count)
    words = f"{svg.number(facts.bad_count)} events ({share:.2g} %) were set aside with their bytes"
    if facts.bad_reasons > len(facts.bad):
        words += f"; of {svg.number(facts.bad_reasons)} reasons, the {len(facts.bad)} most frequent"
    return _paragraph(words + ".") + _table(heads, rows)


def quality(facts: Facts) -> str:
    if not facts.flows:
        return _nothing("batch_metrics", "all")
    rows = [
        (
            escape(f"{flow.pipeline}/{flow.flow}"),
            *(svg.number(count) for count in (flow.batches, flow.rows_in, flow.rows_out)),
            *(svg.number(count) for count in (flow.quarantined, flow.late)),
        )
        for flow in facts.flows
    ]
    heads = (
        *(("flow", ""), ("micro-batches", "n extra"), ("rows in", "n"), ("rows out", "n")),
        *(("quarantined", "n"), ("late, dropped", "n")),
    )
    return _table(heads, rows) + _failed(facts)


def _failed(facts: Facts) -> str:
    if not facts.failed:
        return _paragraph("No row of the newest micro-batches failed an expectation.", "nothing")
    rows = [
        (escape(name), escape(f"{pipeline}/{flow}"), svg.number(count))
        for (pipeline, flow, name), count in facts.failed.most_common()
    ]
    heads = (("expectation", ""), ("flow", "soft"), ("rows that fail it", "n"))
    return f"<h3>Expectations, in the newest micro-batches</h3>{_table(heads, rows)}"


def _sample(raw: bytes | None) -> str:
    if raw is None:
        return ""
    more = " …" if len(raw) > SAMPLE_BYTES else ""
    shown = raw[:SAMPLE_BYTES].decode("utf-8", "backslashreplace") + more
    return f"<details><summary>one of them</summary><pre>{escape(shown) or '(no bytes)'}</pre></details>"
