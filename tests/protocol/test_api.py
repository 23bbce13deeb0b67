"""The table of APIs says the same as the messages, without loading them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidelog.protocol.api import API, NEVER, ApiInfo, ApiKey, api_name


@pytest.mark.parametrize("info", API.values(), ids=lambda info: info.name)
def test_versions_are_those_of_the_messages(info: ApiInfo) -> None:
    for message in (info.request, info.response):
        assert info.key == message.KEY
        assert tuple(message.VERSIONS) == (info.min_version, info.max_version), (
            f"{message.__name__} has other versions in protocol/messages than {info.name} in protocol/api.py"
        )
        flexible_from = message.FLEXIBLE.low if message.FLEXIBLE.high >= 0 else NEVER
        assert info.flexible_from == flexible_from
    assert info.request.__name__ == info.name + "Request"
    assert info.response.__name__ == info.name + "Response"


def test_produce_is_announced_from_zero_or_old_librdkafka_drops_compression() -> None:
    assert API[ApiKey.PRODUCE].min_version == 3
    assert API[ApiKey.PRODUCE].announced_min_version == 0
    assert API[ApiKey.FETCH].announced_min_version == 4


def test_an_unstable_version_is_not_announced() -> None:
    assert API[ApiKey.INIT_PRODUCER_ID].stable_max_version == 5
    assert API[ApiKey.PRODUCE].stable_max_version == 13
    assert [info.name for info in API.values() if info.latest_unstable] == ["InitProducerId"]


def test_what_only_zookeeper_mode_speaks_is_marked() -> None:
    marked = [int(info.key) for info in API.values() if info.zookeeper_only]
    assert marked == [4, 5, 6, 7]


def test_flexible_versions() -> None:
    assert not API[0].is_flexible(8)
    assert API[0].is_flexible(9)
    assert not API[ApiKey.SASL_HANDSHAKE].is_flexible(1)


def test_names_for_people() -> None:
    assert api_name(18) == "ApiVersions"
    assert api_name(999) == "API key 999"
    assert repr(API[1]) == "Fetch(1) v4-18"


def test_the_table_loads_no_message() -> None:
    code = (
        "import sys, tidelog.protocol.headers\n"
        "print([name for name in sys.modules if name.startswith('tidelog.protocol.messages.')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path())
    assert out.stdout.strip() == "[]"


def path() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path)}
