"""Pages of records: every start point, both ways, transactions, limits, the tail and the timeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from tests.console.records.conftest import WithReader
from tidelog import Producer
from tidelog.console.records.browser import Limits, RecordBrowser, RecordPage
from tidelog.console.records.cursors import Cursor, CursorError, Start, StartKind
from tidelog.console.records.filters import RecordFilter
from tidelog.console.records.log_record import LogRecord, ShownRecord, TransactionState
from tidelog.console.records.rules import RecordRules, RecordView
from tidelog.console.records.timeline import Timeline, read_timeline
from tidelog.console.records.topic_reader import Chunk, TopicReader
from tidelog.errors import UnknownTopicOrPartition
from tidelog.testing import Broker

MINUTE = 60_000
RULES = RecordRules()
NEWEST, OLDEST = Start(StartKind.NEWEST), Start(StartKind.OLDEST)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages do not end by time on a busy machine."""
    monkeypatch.setattr("tidelog.console.records.browser.Limits", lambda: Limits(seconds=600))


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """300 records in 3 partitions, a record each minute, round robin, in batches of ten."""
    broker.create_topic("rides", partitions=3)
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=50) as producer:
        for number in range(300):
            producer.send(
                "rides", f'{{"n": {number}}}'.encode(), key=f"k{number % 7}".encode(),
                headers=[("h", b"v")], partition=number % 3, timestamp_ms=number * MINUTE,
            )  # fmt: skip
            if number % 30 == 29:
                producer.flush()
    return "rides"


def browser(reader: TopicReader, partitions: Sequence[int] = (), *, control: bool = False) -> RecordBrowser:
    return RecordBrowser(reader, RULES.view(reader.topic), partitions=partitions, control=control)


def numbers(page: RecordPage) -> list[int]:
    return [record.record.timestamp // MINUTE for record in page.records]


def page_of(where: Start | Cursor, count: int = 50, **options: object) -> Callable[[TopicReader], object]:
    return lambda reader: browser(reader).page(where, count, **options)  # type: ignore[arg-type]


def test_the_newest_records_come_first_and_paging_goes_back_to_the_oldest(
    topic: str, with_reader: WithReader[list[int]]
) -> None:
    async def read(reader: TopicReader) -> list[int]:
        found: list[int] = []
        where: Start | Cursor | None = NEWEST
        while where is not None:
            page = await browser(reader).page(where, 70)
            assert page.is_complete
            found += numbers(page)
            where = page.older and Cursor.parse(str(page.older))
        assert page.progress == 1.0
        return found

    assert with_reader(topic, read) == list(reversed(range(300)))


def test_paging_forward_ends_at_the_newest(topic: str, with_reader: WithReader[list[int]]) -> None:
    async def read(reader: TopicReader) -> list[int]:
        found: list[int] = []
        where: Start | Cursor | None = OLDEST
        while where is not None:
            page = await browser(reader).page(where, 128)
            found += numbers(page)
            where = page.newer
        return found

    assert with_reader(topic, read) == list(range(300))


def test_a_full_answer_does_not_hide_partitions(
    topic: str, with_reader: WithReader[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker fills an answer up to a size, and returns the other partitions empty."""
    monkeypatch.setattr("tidelog.console.records.topic_reader.REQUEST_BYTES", 1)

    async def read(reader: TopicReader) -> None:
        for start in (NEWEST, OLDEST):
            page = await browser(reader).page(start, 300)
            assert sorted(numbers(page)) == list(range(300))

    with_reader(topic, read)


def test_a_page_back_and_forth_is_the_same_page(topic: str, with_reader: WithReader[None]) -> None:
    async def read(reader: TopicReader) -> None:
        first = await browser(reader).page(NEWEST, 20)
        assert first.older is not None
        second = await browser(reader).page(first.older, 20)
        assert numbers(second) == list(range(279, 259, -1))
        assert second.newer is not None
        again = await browser(reader).page(second.newer, 20)
        assert numbers(again) == numbers(first)

    with_reader(topic, read)


def test_a_cursor_shows_the_same_records_when_more_have_come(
    broker: Broker, with_reader: WithReader[None]
) -> None:
    broker.produce("growing", *map(str, range(10)), partition=0)

    async def read(reader: TopicReader) -> None:
        page = await browser(reader).page(NEWEST, 4)
        assert page.older is not None
        before = await browser(reader).page(page.older, 4)
        await asyncio.to_thread(broker.produce, "growing", "new", partition=0)
        after = await browser(reader).page(page.older, 4)
        assert (
            [r.record.offset for r in before.records]
            == [r.record.offset for r in after.records]
            == [5, 4, 3, 2]
        )

    with_reader("growing", read)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (Start(StartKind.OFFSET, 50), 150),
        (Start(StartKind.TIME, 100 * MINUTE), 100),
        (Start(StartKind.TIME, 100 * MINUTE + 1), 101),
    ],
)
def test_a_page_starts_at_an_offset_or_a_time(
    topic: str, with_reader: WithReader[RecordPage], start: Start, first: int
) -> None:
    page = with_reader(topic, lambda reader: browser(reader).page(start, 10))
    assert numbers(page) == list(range(first, first + 10))


def test_a_time_after_the_last_record_and_an_offset_after_the_end_show_none(
    topic: str, with_reader: WithReader[RecordPage]
) -> None:
    for start in (Start(StartKind.TIME, 10**12), Start(StartKind.OFFSET, 10**9)):
        page = with_reader(topic, lambda reader, start=start: browser(reader).page(start, 10))  # type: ignore[misc]
        assert page.records == []
        assert page.newer is None
        assert page.older is not None


def test_partitions_can_be_chosen(topic: str, with_reader: WithReader[RecordPage]) -> None:
    page = with_reader(topic, lambda reader: browser(reader, [1]).page(OLDEST, 3))
    assert numbers(page) == [1, 4, 7]
    with pytest.raises(UnknownTopicOrPartition, match="partition 9 of topic rides does not exist"):
        with_reader(topic, lambda reader: browser(reader, [9]).page(OLDEST, 3))


def test_a_record_has_its_key_value_headers_and_batch(
    topic: str, with_reader: WithReader[RecordPage]
) -> None:
    shown = with_reader(topic, lambda reader: browser(reader).page(OLDEST, 1)).records[0]
    assert (shown.key.text, shown.value.value) == ("k0", {"n": 0})
    assert [(name, header.text) for name, header in shown.headers] == [("h", "v")]
    record = shown.record
    assert record.producer_id >= 0
    assert (record.producer_epoch, record.sequence, record.transaction) == (0, 0, TransactionState.NONE)
    assert (record.key_size, record.value_size, record.codec) == (2, 8, "none")


def test_a_search_ends_at_its_limits_and_continues(topic: str, with_reader: WithReader[None]) -> None:
    async def read(reader: TopicReader) -> None:
        where: Start | Cursor | None = OLDEST
        found: list[int] = []
        pages = 0
        progress = [0.0]
        while where is not None:
            wanted = RecordFilter(expression="record.value.n % 100 == 99")
            page = await browser(reader).page(
                where, 10, wanted=wanted, limits=Limits(records=120, seconds=600)
            )
            found += numbers(page)
            where = page.following
            progress.append(page.progress)
            pages += 1
        assert found == [99, 199, 299]
        assert pages == 3
        assert progress == sorted(progress)
        assert progress[-1] == 1.0

    with_reader(topic, read)


def test_a_spent_budget_still_gets_on(topic: str, with_reader: WithReader[list[int]]) -> None:
    """A page whose limits are too small for its first request must not return the cursor that it got."""

    async def read(reader: TopicReader) -> list[int]:
        found: list[int] = []
        where: Start | Cursor | None = NEWEST
        for _ in range(3):
            assert where is not None
            page = await browser(reader).page(where, 10, limits=Limits(seconds=0))
            found += numbers(page)
            where = page.following
        return found

    assert with_reader(topic, read) == [299, 298, 297]


def test_the_first_records_are_read_whatever_time_it_takes(
    topic: str, with_reader: WithReader[list[int]]
) -> None:
    async def read(reader: TopicReader) -> list[int]:
        limits = Limits(seconds=0, least=20)
        return [len((await browser(reader).page(NEWEST, count, limits=limits)).records) for count in (10, 50)]

    assert with_reader(topic, read) == [10, 20]


def test_a_search_backwards_finds_the_same_and_counts_errors(
    topic: str, with_reader: WithReader[RecordPage]
) -> None:
    wanted = RecordFilter("k3", "record.value.n % 2 == 0 || record.value.missing")
    page = with_reader(topic, lambda reader: browser(reader).page(NEWEST, 500, wanted=wanted))
    assert numbers(page) == [n for n in reversed(range(300)) if n % 7 == 3 and n % 2 == 0]
    assert page.filter_errors == len([n for n in range(300) if n % 7 == 3 and n % 2 == 1])
    assert "no such key" in page.filter_error


def test_one_record_is_found_by_its_offset(topic: str, with_reader: WithReader[object]) -> None:
    shown = with_reader(topic, lambda reader: browser(reader).record(2, 99))
    assert shown is not None
    assert shown.record.timestamp == 299 * MINUTE  # type: ignore[attr-defined]
    for offset in (100, 10**12):
        assert with_reader(topic, lambda reader, at=offset: browser(reader).record(2, at)) is None  # type: ignore[misc]


def test_a_topic_that_does_not_exist_is_named(with_reader: WithReader[object]) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
        with_reader("nowhere", page_of(NEWEST))  # type: ignore[arg-type]


def test_the_state_of_each_transaction_is_shown(broker: Broker, with_reader: WithReader[object]) -> None:
    broker.create_topic("paid")
    server = broker.bootstrap_servers
    with Producer(bootstrap_servers=server, transactional_id="a") as first:
        first.init_transactions()
        for commit in (True, False):
            first.begin_transaction()
            first.send("paid", b"committed" if commit else b"aborted")
            first.flush()
            first.commit_transaction() if commit else first.abort_transaction()
        broker.produce("paid", "plain")
        first.begin_transaction()
        first.send("paid", b"open")
        first.flush()
        with Producer(bootstrap_servers=server, transactional_id="b") as second:
            second.init_transactions()
            for commit in (True, False):
                second.begin_transaction()
                second.send("paid", b"committed" if commit else b"aborted")
                second.flush()
                second.commit_transaction() if commit else second.abort_transaction()

        async def read(reader: TopicReader) -> object:
            for start in (NEWEST, OLDEST):
                page = await browser(reader).page(start, 50)
                states = [(record.value.text, str(record.record.transaction)) for record in page.records]
                if start is NEWEST:
                    states.reverse()
                assert states == [
                    ("committed", "committed"), ("aborted", "aborted"), ("plain", "none"), ("open", "open"),
                    ("committed", "committed"), ("aborted", "aborted"),
                ]  # fmt: skip
            page = await browser(reader, control=True).page(OLDEST, 50)
            markers = [record.record.control for record in page.records if record.record.control]
            assert markers == ["commit", "abort", "commit", "abort"]
            return None

        with_reader("paid", read)
        first.abort_transaction()


def test_gaps_of_markers_do_not_stop_a_search_back(
    broker: Broker, with_reader: WithReader[list[int]]
) -> None:
    """Markers of transactions take offsets, too: here more than a window of them."""
    broker.create_topic("gaps")
    broker.produce("gaps", "first")
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="gaps") as producer:
        producer.init_transactions()
        for _ in range(20):
            producer.begin_transaction()
            producer.send("gaps", b"x")
            producer.flush()
            producer.abort_transaction()

    async def read(reader: TopicReader) -> list[int]:
        wanted = RecordFilter("first")
        page = await browser(reader).page(NEWEST, 5, wanted=wanted)
        return [record.record.offset for record in page.records]

    assert with_reader("gaps", read) == [0]


def test_the_tail_shows_new_records_only(broker: Broker, with_reader: WithReader[list[str]]) -> None:
    broker.produce("tailed", "before")

    async def read(reader: TopicReader) -> list[str]:
        events = browser(reader).tail(RecordFilter("new"))
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        texts: list[str] = []
        sent = False
        while not texts:
            event = await following
            texts += [record.value.text or "" for record in event.records]
            if not sent:
                await asyncio.to_thread(broker.produce, "tailed", "new 1", "other", "new 2")
                sent = True
            following = asyncio.ensure_future(anext(events))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return texts

    assert with_reader("tailed", read) == ["new 1", "new 2"]


def test_the_tail_of_a_busy_topic_asks_a_few_times_a_second(
    topic: str, with_reader: WithReader[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(reader: TopicReader) -> int:
        """The requests of half a second in which there are always new records."""
        chunk = await reader.fetch({0: 0}, 64 << 10)
        asked = 0

        async def fetch(*_: object, **__: object) -> dict[int, Chunk]:
            nonlocal asked
            asked += 1
            return chunk

        monkeypatch.setattr(reader, "fetch", fetch)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                async for event in browser(reader, [0]).tail(begin={0: 0}):
                    assert event.records
        return asked

    assert 1 <= with_reader(topic, read) <= 4


def test_the_timeline_counts_offsets_in_round_spans(topic: str, with_reader: WithReader[Timeline]) -> None:
    async def read(reader: TopicReader) -> Timeline:
        return await read_timeline(reader, await reader.ranges(), buckets=12)

    found = with_reader(topic, read)
    assert found.step_ms == 30 * MINUTE
    assert [bucket.count for bucket in found.buckets] == [30] * 10
    assert found.buckets[1].start_ms == 30 * MINUTE


def test_an_empty_topic_has_an_empty_page_and_timeline(broker: Broker, with_reader: WithReader[None]) -> None:
    broker.create_topic("empty")

    async def read(reader: TopicReader) -> None:
        page = await browser(reader).page(NEWEST, 10)
        assert (page.records, page.older, page.newer, page.is_complete) == ([], None, None, True)
        assert (await read_timeline(reader, await reader.ranges())).buckets == []

    with_reader("empty", read)


@pytest.mark.parametrize(
    "text", ["", "x", "od", "od_0", "od_0-1-2", "od_a-1", "od_0-1;", "od" + "_0-1" * 20_000]
)
def test_a_wrong_cursor_is_refused(text: str) -> None:
    with pytest.raises(CursorError):
        Cursor.parse(text)


def test_wrong_counts_and_start_points_are_refused(topic: str, with_reader: WithReader[object]) -> None:
    with pytest.raises(CursorError, match="expected 1 to 500"):
        with_reader(topic, page_of(NEWEST, 501))  # type: ignore[arg-type]
    with pytest.raises(CursorError, match="expected 0 or more"):
        Start(StartKind.OFFSET, -1)


def test_a_search_decodes_only_what_may_match(
    topic: str, with_reader: WithReader[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    show = RecordView.show

    def counted(view: RecordView, record: LogRecord) -> ShownRecord:
        decoded.append(record.timestamp // MINUTE)
        return show(view, record)

    monkeypatch.setattr(RecordView, "show", counted)

    async def read(reader: TopicReader) -> None:
        for start in (NEWEST, OLDEST):
            for text, expression in (('"n": 12}', ""), ("", "record.offset == 4 && record.partition == 0")):
                decoded.clear()
                page = await browser(reader).page(start, 50, wanted=RecordFilter(text, expression))
                assert numbers(page) == decoded == [12]
                assert (page.scanned, page.is_complete, page.progress) == (300, True, 1.0)

    with_reader(topic, read)


def test_a_search_that_finds_little_continues_where_it_ended(
    topic: str, with_reader: WithReader[None]
) -> None:
    async def read(reader: TopicReader) -> None:
        for start in (NEWEST, OLDEST):
            found: list[int] = []
            scanned = pages = 0
            where: Start | Cursor | None = start
            while where is not None:
                wanted = RecordFilter('"n": 1')
                page = await browser(reader).page(where, 40, wanted=wanted, limits=Limits(100, seconds=600))
                found += numbers(page)
                scanned += page.scanned
                pages += 1
                where = page.following
            assert sorted(found) == [n for n in range(300) if str(n).startswith("1")]
            assert found == sorted(found, reverse=start is NEWEST)
            assert scanned >= 300  # a page may read some rejected records again
            assert pages >= 3

    with_reader(topic, read)
