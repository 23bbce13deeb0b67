"""Format strings: what is written with one is parsed again with the same one."""

from __future__ import annotations

import json
import struct
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scale import scale
from tidelog.cli.formats.envelope import NewRecord, compact_json, envelope, from_envelope
from tidelog.cli.formats.layout import Literal, Verb, parse_layout
from tidelog.cli.formats.numbers import FIXED, HEX_DIGITS, number_writer, unpacker
from tidelog.cli.formats.parser import RecordParser, number_reader
from tidelog.cli.formats.source import ByteSource
from tidelog.cli.formats.writer import RecordFormatter, Shown
from tidelog.clients.consumer.details import Watermarks
from tidelog.records.loops import ConsumerRecord

RECORD = ConsumerRecord(
    "orders", 3, 42, 1_600_000_000_123, b"alice", b'{"n": 1.50}', (("a", b"1"), ("b", None)), 0, 7
)


def written(layout: str, record: ConsumerRecord = RECORD, *, escape: bool = False) -> bytes:  # type: ignore[type-arg]
    return RecordFormatter(layout, escape=escape).write(Shown(record, 9, Watermarks(1, 2, 3)))


def source(data: bytes, piece: int = 3) -> ByteSource:
    """An input that arrives in small pieces."""
    stream = BytesIO(data)
    return ByteSource(lambda _: stream.read(piece))


def parsed(layout: str, data: bytes) -> list[NewRecord]:
    parser, given_data = RecordParser(layout), source(data)
    found = []
    while (record := parser.next(given_data)) is not None:
        found.append(record)
    return found


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (r"%t %p %o %k %v\n", b'orders 3 42 alice {"n": 1.50}\n'),
        (r"%T %K %V %H %e %i", b"6 5 11 2 7 9"),
        ("%v{json}", b'{"n":1.50}'),
        ("%k{json}", b'"alice"'),
        ("%k{hex} %k{base64} %t{base64raw}", b"616c696365 YWxpY2U= b3JkZXJz"),
        ("%d %d{hex}", b"1600000000123 174876e807b"),
        ("%d{strftime[%F %H]}", b"2020-09-13 12"),
        ("%d{go##2006-01-02T15:04:05.000Z07:00##}", b"2020-09-13T12:26:40.123Z"),
        ("%d{go[Mon Jan _2 3:04PM 06]}", b"Sun Sep 13 12:26PM 20"),
        ("%h{%k=%v;}", b"a=1;b=;"),
        ("%h{%K%V{hex8}%v{json},}", b"1011,100null,"),
        ("%[ %| %]", b"1 2 3"),
        ("%a{timestamp-type} %a{compression} %a{compression;hex8}", b"0 none 00"),
        ("%a{control-bit;bool} %x %y", b"false -1 -1"),
        (r"%% %{ %} \x41\t\\", b"% { } A\t\\"),
        ("%p{big32}", b"\0\0\0\3"),
        ("%p{little16}%p{bool}", b"\3\0true"),
        ("%k{unpack{<hcs}}", str(struct.unpack("<h", b"al")[0]).encode() + b"ice"),
        ("%p{hex4}%p{hex16}%p{byte}", b"30003\3"),
    ],
)  # fmt: skip
def test_a_record_is_written(layout: str, expected: bytes) -> None:
    assert written(layout) == expected


@pytest.mark.parametrize(
    "layout",
    ["%", "%q", r"\q", r"\x4", "%v{", "%v{nonsense}", "%p{nonsense}", "%a", "%a{x}", "%h", "%h{%p}", "%h{%k",
     "%d{strftime[%F}", "%k{unpack[z]}", "%k{unpack[sb]}"],
)  # fmt: skip
def test_a_wrong_format_is_refused(layout: str) -> None:
    with pytest.raises(ValueError):
        RecordFormatter(layout)


@pytest.mark.parametrize(
    "layout",
    ["", "%v{", "x", "%v%k", "%v%V", "%h{%k}", "%H%h", "%q", "%a", "%V%v{json}", "%p{3}", "%v%v\n",
     "%v{re[(]}", "%v{unpack[b]}", "%H%h{%p,}", "%p{hex}"],
)  # fmt: skip
def test_a_format_that_cannot_be_parsed_is_refused(layout: str) -> None:
    with pytest.raises(ValueError):
        RecordParser(layout)


def test_a_timestamp_that_no_calendar_has_is_a_number() -> None:
    record = ConsumerRecord("orders", 0, 0, 999_999_999_999_999, None, None)
    expected = b"%!(timestamp 999999999999999)"
    assert written("%d{strftime[%F]} %d{go[2006]}", record) == expected + b" " + expected


def test_a_tombstone_is_nothing_or_null() -> None:
    assert written("[%v][%v{json}]", ConsumerRecord("t", 0, 0)) == b"[][null]"


def test_bytes_that_are_no_text_are_json_all_the_same() -> None:
    assert json.loads(written("%v{json}", ConsumerRecord("t", 0, 0, value=b"\xff"))) == {"base64": "/w=="}


@pytest.mark.parametrize("layout", ["%v", "%k", "%v{json}", "%h{%k%v}", "%v{unpack[s]}"])
def test_control_characters_do_not_reach_a_terminal(layout: str) -> None:
    evil = b"\x1b[2J\x07\xc2\x9b1m"
    record = ConsumerRecord("t", 0, 0, key=evil, value=evil, headers=((evil.decode(), evil),))
    shown = written(layout, record, escape=True)
    assert b"\x1b" not in shown
    assert b"\xc2\x9b" not in shown
    assert b"\x07" not in shown
    if layout == "%v":
        assert written(layout, record) == evil


def test_unpacking_tells_of_missing_and_surplus_bytes() -> None:
    assert unpacker("i")(b"ab") == b"%!(have 2 bytes, need 4)"
    assert unpacker("b$")(b"ab") == b"97%!$(not end-of-input)"
    assert unpacker(">Hx<H")(b"\0\1\1\0") == b"11"
    assert unpacker("c")(b"") == b"%!c(no bytes available)"


@settings(max_examples=scale(20, 500), deadline=None)
@given(st.text())
def test_any_layout_is_read_or_refused(text: str) -> None:
    for make in (RecordFormatter, RecordParser):
        try:
            make(text)
        except ValueError:
            pass


@settings(max_examples=scale(20, 500), deadline=None)
@given(st.text(alphabet="ab%{}\\n#[]", max_size=30))
def test_literals_come_back(text: str) -> None:
    escaped = text.replace("\\", "\\\\").replace("%", "%%")
    tokens = parse_layout(escaped)
    assert b"".join(token.data for token in tokens if isinstance(token, Literal)) == text.encode()
    assert not any(isinstance(token, Verb) for token in tokens)


@settings(max_examples=scale(20, 500), deadline=None)
@given(st.integers(0, 2**64 - 1), st.sampled_from([*FIXED, *HEX_DIGITS]))
def test_numbers_of_fixed_width_come_back_cut_to_it(number: int, form: str) -> None:
    bits = 8 * FIXED[form][0] if form in FIXED else 4 * HEX_DIGITS[form]
    assert number_reader(form)(source(number_writer(form)(number))) == number % (1 << bits)


record_lists = st.lists(
    st.builds(
        ConsumerRecord,
        st.sampled_from(["t", "orders"]),
        st.integers(0, 9),
        st.integers(0, 99),
        st.integers(0, 2**41),
        st.binary(max_size=20),
        st.binary(max_size=20),
        st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    max_size=5,
)


@pytest.mark.parametrize(
    "layout",
    [
        "%K{big16}%k%V{big32}%v%T{byte}%t%p{little32}%d{big64}%H{byte}%h{%K{byte}%k%V{byte}%v}",
        r"%T:%t %p %d %K:%k %V:%v %H %h{%K:%k %V:%v;}\n",
        r"%t %p %d %k{hex} %v{base64} %H %h{%k{hex}=%v{hex},}\n",
    ],
)
@settings(max_examples=scale(20, 500), deadline=None)
@given(records=record_lists)
def test_what_is_written_is_parsed_again(layout: str, records: list[ConsumerRecord]) -> None:  # type: ignore[type-arg]
    data = b"".join(written(layout, record) for record in records)
    found = parsed(layout, data)
    assert [
        (each.topic, each.partition, each.timestamp, each.key, each.value, each.headers) for each in found
    ] == [
        (each.topic, each.partition, each.timestamp, each.key, each.value, each.headers) for each in records
    ]


@settings(max_examples=scale(20, 500), deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=9)), max_size=4))
def test_an_envelope_comes_back(pairs: list[tuple[bytes, bytes | None]]) -> None:
    for key, value in pairs:
        record = ConsumerRecord("t", 2, 5, 77, key, value, (("h", value), ("h", key)))
        found = from_envelope(json.dumps(envelope(record, 4)).encode())
        assert found == NewRecord("t", 2, 77, key, value, (("h", value), ("h", key)))


@pytest.mark.parametrize(
    "line",
    [b"x", b"[]", b'{"headers":["a"]}', b'{"partition":"0"}', b'{"ts":1.5}', b'{"key":{"base64":"?"}}', b"7"],
)
def test_a_line_that_is_no_envelope_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        from_envelope(line)


def test_lines_are_parsed_with_and_without_the_last_newline() -> None:
    for data in (b"a\nb\n", b"a\nb"):
        assert [record.value for record in parsed(r"%v\n", data)] == [b"a", b"b"]
    assert [record.value for record in parsed(r"%v\n", b"a\n\nb")] == [b"a", b"", b"b"]


def test_json_ends_where_its_value_ends() -> None:
    data = b'k1 {"a": [1, "}"]} k2 "x\\"y" k3 [1,\n 2] k4 -1.50e3 k5 true'
    found = parsed("%k %v{json} ", data)
    assert [record.key for record in found] == [b"k1", b"k2", b"k3", b"k4", b"k5"]
    values = [record.value for record in found]
    assert values == [b'{"a":[1,"}"]}', b'"x\\"y"', b"[1,2]", b"-1.50e3", b"true"]


def test_a_pattern_ends_a_text() -> None:
    found = parsed(r"%k{re[\d+]}%v{re#[a-z]+#}", b"12ab345c")
    assert [(record.key, record.value) for record in found] == [(b"12", b"ab"), (b"345", b"c")]


@pytest.mark.parametrize(
    ("layout", "data"),
    [
        ("%K{big16}%k", b"\0\5abc"),
        ("%k %v\n", b"alice"),
        ("%p %v\n", b"x y\n"),
        ("%v{hex}\n", b"zz\n"),
        ("%v{base64}\n", b"!\n"),
        ("%v{json}", b'{"a":'),
        ("%v{json}", b"{]"),
        ("[%v]", b"x"),
        ("%p{bool}%v\n", b"maybe\n"),
        ("%p{hex8}%v\n", b"zz\n"),
        ("%H %h{%k,}", b"2 a,"),
        (r"%v{re[\d]}", b"x"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(layout: str, data: bytes) -> None:
    with pytest.raises(ValueError):
        parsed(layout, data)


def test_compact_json_keeps_numbers_and_strings() -> None:
    assert compact_json(b'{ "a b" : [ 1.50 , "x  \\" y" ] }') == '{"a b":[1.50,"x  \\" y"]}'
    with pytest.raises(ValueError):
        compact_json(b"{")
