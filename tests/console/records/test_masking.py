"""Masks hide fields and patterns, whatever decoder is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest

from tidelog.console.records.decoders import Decoders
from tidelog.console.records.filters import RecordFilter
from tidelog.console.records.log_record import LogRecord, ShownRecord
from tidelog.console.records.rules import RecordRules, RulesError

VALUE = {
    "name": "Ann",
    "email": "ann@example.org",
    "cards": [{"no": "4111-1111"}, {"no": 42}],
    "deep": {"a": {"pin": 1}},
}
RAW = json.dumps(VALUE).encode()
HEADERS = (("token", b"s3cret"), ("trace", b"id ann@example.org"))


def shown(
    *masks: dict[str, object], value: bytes = RAW, decoder: str = "", topic: str = "users"
) -> ShownRecord:
    rules = RecordRules.parse({"masks": [{"topic": "users", **mask} for mask in masks]}, Path())
    return rules.view(topic, value=decoder).show(
        LogRecord(topic, 0, 1, 5, b"ann@example.org", value, HEADERS)
    )


def test_fields_are_masked_removed_and_replaced_by_their_path() -> None:
    found = shown(
        {"fields": ["email"]},
        {"fields": ["cards.no"], "action": "replace", "replacement": "###"},
        {"fields": ["deep.*.pin"], "action": "remove"},
    ).value
    assert found.value == {
        "name": "Ann", "email": "xxx@xxxxxxx.xxx", "cards": [{"no": "###"}, {"no": "###"}], "deep": {"a": {}},
    }  # fmt: skip
    assert found.text == json.dumps(found.value)
    assert found.note == "masked"


def test_a_pattern_is_masked_in_texts_names_and_numbers() -> None:
    found = shown({"pattern": r"\d{2,}", "action": "replace", "replacement": "N"}).value
    assert found.value == {**VALUE, "cards": [{"no": "N-N"}, {"no": "N"}]}


@pytest.mark.parametrize("decoder", [decoder.name for decoder in Decoders()])
@pytest.mark.parametrize(
    "mask", [{"fields": ["email"]}, {"pattern": "[a-z]+@[a-z.]+", "action": "remove"}, {"action": "remove"}]
)
def test_no_choice_of_decoder_goes_around_a_rule(decoder: str, mask: dict[str, object]) -> None:
    for value in (RAW, msgpack.packb(VALUE)):
        found = shown(mask, value=value, decoder=decoder)
        for secret in ("ann@example.org", b"ann@example.org".hex(" "), "YW5uQGV4YW1wbGUub3Jn"):
            assert secret not in repr(found.value)


def protobuf(*values: str) -> bytes:
    """A message whose fields 1, 2, ... are texts; a zero byte in front of a text makes it no text."""
    return b"".join(
        bytes([number << 3 | 2, len(value)]) + value.encode() for number, value in enumerate(values, 1)
    )


def test_fields_of_protobuf_without_a_schema_have_no_names_to_mask() -> None:
    value = protobuf("Ann", "ann@example.org") + b"\x18\x81\x01"
    assert "example" in str(shown(value=value).value.text)
    for decoder in ("", "protobuf-raw"):
        assert shown({"fields": ["email"]}, value=value, decoder=decoder).value.text == "[hidden]"
        found = shown({"fields": ["2"]}, value=value, decoder=decoder).value
        assert found.value == {"1": "Ann", "2": "xxx@xxxxxxx.xxx", "3": 129}


def test_a_path_into_protobuf_without_a_schema_hides_all() -> None:
    """An inner message whose text has 32 characters is a text itself: a new line, a space, and the 32."""
    value = protobuf(protobuf("0123456789abcdef0123456789abcdef").decode()) + b"\x18\x81\x01"
    assert "01234" in str(shown(value=value).value.text)
    assert shown({"fields": ["1.1"]}, value=value).value.text == "[hidden]"


@pytest.mark.parametrize("decoder", [decoder.name for decoder in Decoders() if decoder.name != "json"])
@pytest.mark.parametrize(
    ("pattern", "value", "secret"),
    [
        ("^[0-9]{16}$", b'{"card": "4111111111111111"}', "4111111111111111"),
        ("M\u00fcller", b'{"name": "M\\u00fcller"}', "ller"),
        ("https://secret/.*", b'{"link": "https:\\/\\/secret\\/a"}', "secret"),
    ],
)
def test_a_pattern_finds_what_the_decoder_of_the_topic_shows_whatever_decoder_is_chosen(
    pattern: str, value: bytes, secret: str, decoder: str
) -> None:
    found = shown({"pattern": pattern, "action": "remove"}, value=value, decoder=decoder).value
    assert secret not in str(found.text)
    assert secret not in str(found.value)
    harmless = shown({"pattern": pattern}, value=b'{"name": "Ann"}', decoder="text").value
    assert harmless.text == '{"name": "Ann"}'


def test_a_duplicate_name_in_json_does_not_show_the_hidden_field() -> None:
    assert "secret" not in str(shown({"fields": ["a"]}, value=b'{"a": "secret1", "a": null}').value)


def test_reasons_do_not_quote_what_is_hidden() -> None:
    found = shown({"fields": ["a"]}, value=b'{"secret": ', decoder="json").value
    assert (found.text, found.reason, found.tried) == ("[hidden]", "", ())


def test_keys_and_headers_are_masked() -> None:
    found = shown(
        {"target": "key", "action": "replace", "replacement": "someone"},
        {"target": "headers", "fields": ["token"], "action": "remove"},
        {"target": "headers", "pattern": "[a-z]+@[a-z.]+"},
    )
    assert found.key.text == "someone"
    assert [(name, header.text) for name, header in found.headers] == [("trace", "id xxx@xxxxxxx.xxx")]


def test_a_filter_cannot_ask_for_what_is_hidden() -> None:
    record = shown({"fields": ["email"]})
    assert not RecordFilter("ann@example").matches(LogRecordWithoutKey(record))
    assert not RecordFilter(expression='record.value.email.startsWith("ann")').matches(record)


def LogRecordWithoutKey(record: ShownRecord) -> ShownRecord:
    return ShownRecord(record.record, record.value, record.value, (), True)


def test_other_topics_are_not_masked() -> None:
    found = shown({"fields": ["email"]}, topic="users2")
    assert found.value.text == RAW.decode()
    assert not found.masked


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ([], "expected an object"),
        ({"mask": []}, "expected an object"),
        ({"masks": {}}, "are lists"),
        ({"masks": [{}]}, "has no topic"),
        ({"masks": [{"topic": "("}]}, "is not a regular expression"),
        ({"masks": [{"topic": "a", "action": "hide"}]}, "'hide' is not a valid MaskAction"),
        ({"masks": [{"topic": "a", "fields": ["a..b"]}]}, "a path has an empty name"),
        ({"masks": [{"topic": "a", "field": "b"}]}, "field in masks is unknown"),
        ({"decoders": [{"topic": "a", "value": "xml"}]}, "decoder 'xml' is unknown"),
        ({"decoders": [{"topic": "a", "value": "avro", "valueSchema": "none.avsc"}]}, "No such file"),
    ],
)
def test_a_wrong_rule_is_refused_with_a_reason(rules: object, reason: str) -> None:
    with pytest.raises(RulesError) as caught:
        RecordRules.parse(rules, Path("/nonexistent"))
    assert reason in str(caught.value)


def test_a_rule_gives_topics_their_decoder_and_schema(tmp_path: Path) -> None:
    (tmp_path / "ride.avsc").write_text(
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    )
    (tmp_path / "rules.json").write_text(
        json.dumps(
            {"decoders": [{"topic": "ride.*", "key": "hex", "value": "avro", "valueSchema": "ride.avsc"}]}
        )
    )
    rules = RecordRules.load(tmp_path / "rules.json")
    found = rules.view("rides").show(LogRecord("rides", 0, 0, 0, b"a", b"\x06"))
    assert (found.key.text, found.value.text) == ("61", '{"a": 3}')
    assert (
        rules.view("rides", value="auto").show(LogRecord("rides", 0, 0, 0, b"a", b"\x06")).value.kind
        == "avro"
    )
    assert rules.view("other").show(LogRecord("other", 0, 0, 0, b"a", b"b")).value.kind == "text"
    with pytest.raises(RulesError, match="No such file"):
        RecordRules.load(tmp_path / "missing.json")


def test_the_example_of_the_documentation_is_valid() -> None:
    page = (Path(__file__).parent.parent.parent.parent / "docs" / "console.md").read_text()
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])
    rules = RecordRules.parse({"masks": example["masks"]}, Path())
    found = rules.view("users").show(LogRecord("users", 0, 0, 0, None, RAW)).value.value
    assert isinstance(found, dict)
    assert found["email"] == "xxx@xxxxxxx.xxx"
    assert all({"topic", "value", "valueSchema"} <= entry.keys() for entry in example["decoders"])
