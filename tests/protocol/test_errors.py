"""Error codes and their exception classes."""

from __future__ import annotations

import pytest

from tidelog import errors
from tidelog.errors import ErrorCode, KafkaError, error_class, error_name


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_every_code_has_a_class_of_its_own_name(code: ErrorCode) -> None:
    cls = error_class(code)
    assert cls.code == code
    name = "".join(part.capitalize() for part in code.name.split("_"))
    assert cls.__name__ == ("InvalidTopic" if code is ErrorCode.INVALID_TOPIC_EXCEPTION else name)
    assert getattr(errors, cls.__name__) is cls


def test_codes_run_without_gaps_as_in_kafka() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 134))


def test_what_a_client_may_try_again() -> None:
    assert errors.NotLeaderOrFollower.retriable
    assert errors.KafkaStorageError.retriable
    assert not errors.OffsetOutOfRange.retriable
    assert sum(error_class(code).retriable for code in ErrorCode if code) == 32


def test_an_error_is_shown_by_its_message_or_its_name() -> None:
    assert str(errors.OffsetOutOfRange()) == "OFFSET_OUT_OF_RANGE"
    error = errors.InvalidConfig("segment.bytes is -1; at least 14 is expected")
    assert error.message == str(error) == "segment.bytes is -1; at least 14 is expected"
    assert isinstance(error, KafkaError)
    assert errors.OffsetOutOfRange().message is None


def test_a_code_that_nobody_knows_is_an_unknown_server_error() -> None:
    assert error_class(4711) is errors.UnknownServerError
    assert error_name(4711) == "ERROR_4711"
    assert error_name(3) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_errors_of_records_name_them() -> None:
    error = errors.InvalidRecord("2 records", [(0, "no key"), (3, None)])
    assert error.record_errors == [(0, "no key"), (3, None)]
    assert errors.InvalidTimestamp().record_errors == []
