"""Numbers, sizes and times as the pages show them."""

from __future__ import annotations

import time

import pytest

from tidelog.console import formats


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formats.count(1234567), "1,234,567"),
        (formats.count(None), "–"),  # noqa: RUF001
        (formats.short(999), "999"),
        (formats.short(3_100), "3,100"),
        (formats.short(12_345), "12.3k"),
        (formats.short(1_234_567), "1.23M"),
        (formats.short(0.25), "0.2"),
        (formats.size(999), "999 B"),
        (formats.size(1_234_567), "1.2 MB"),
        (formats.size(123_456_789), "123 MB"),
        (formats.rate(12.4), "12/s"),
        (formats.milliseconds(0.123), "0.12 ms"),
        (formats.milliseconds(2500), "2.5 s"),
        (formats.duration(90), "1 min 30 s"),
        (formats.duration(0.5), "500 ms"),
        (formats.instant(0), "1970-01-01 00:00:00.000Z"),
        (formats.instant(9e18), "9000000000000000000 ms"),
        (formats.meaning("604800000", "retention.ms"), "7 d"),
        (formats.meaning("9223372036854775807", "flush.ms"), "no limit"),
        (formats.meaning("1073741824", "segment.bytes"), "1.1 GB"),
        (formats.meaning("-1", "retention.ms"), ""),
        (formats.meaning("4096", "flush.messages"), ""),
        (formats.prose("`delete` deletes <b>"), "<code>delete</code> deletes &lt;b&gt;"),
        (formats.they_are(1, "rule") + formats.they_are(2, "rule"), "1 rule is2 rules are"),
        (formats.plural(1, "topic"), "1 topic"),
        (formats.plural(2000, "topic"), "2,000 topics"),
    ],
)
def test_a_number_is_shown_as_people_read_it(text: str, expected: str) -> None:
    assert text == expected


def test_a_time_is_shown_by_its_distance() -> None:
    now = time.time() * 1000
    assert formats.ago(now) == "now"
    assert formats.ago(now - 90_000) == "1 min ago"
    assert formats.ago(now + 7_260_000) == "in 2 h"
    assert formats.ago(-1) == formats.ago(None) == formats.UNKNOWN
