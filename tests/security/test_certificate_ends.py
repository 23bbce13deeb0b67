"""A certificate that ends soon is in the log and in the metrics before clients are refused."""

from __future__ import annotations

import base64
import json
import logging
import re
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.tls_broker import TlsFiles, authority, tls_broker
from tidelog.security.certificate_fields import end_of
from tidelog.security.der import DerError, encode
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.tls_listener import DAY_SECONDS, SOON_SECONDS, TlsListener

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "principals" / "recorded.json").read_text())


@pytest.mark.parametrize("recorded", RECORDED["names"][:3], ids=lambda recorded: ascii(recorded["name"]))
def test_the_end_is_that_of_the_certificate(recorded: dict[str, str]) -> None:
    der = base64.b64decode(recorded["certificate"])
    assert end_of(der) == x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp()


@pytest.mark.parametrize(
    ("tag", "text", "year"),
    [(0x17, b"491231235959Z", 2049), (0x17, b"500101000000Z", 1950), (0x18, b"20500101000000Z", 2050)],
)
def test_the_year_is_that_of_rfc_5280(tag: int, text: bytes, year: int) -> None:
    assert datetime.fromtimestamp(end_of(certificate_that_ends(encode(tag, text))), UTC).year == year


@pytest.mark.parametrize("end", [encode(0x17, b"soon"), encode(0x02, b"\1"), b""])
def test_a_certificate_without_an_end_is_refused(end: bytes) -> None:
    with pytest.raises(DerError, match="the certificate"):
        end_of(certificate_that_ends(end))


def certificate_that_ends(end: bytes) -> bytes:
    sequence = 0x30
    validity = encode(sequence, encode(0x17, b"200101000000Z") + end)
    before = encode(0x02, b"\1") + 2 * encode(sequence, b"")
    return encode(sequence, encode(sequence, before + validity))


def test_a_listener_warns_at_once_and_each_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = TlsFiles(tmp_path)
    config = BrokerConfig.load(
        None,
        {
            "listeners": "SSL://127.0.0.1:9093",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": files.server,
            "security.inter.broker.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": files.trust,
        },
    )
    listener = TlsListener(config, "SSL", "SSL")
    end = listener.end

    def warnings(seconds_left: float) -> int:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tidelog.server"):
            listener.warn_of_end(end - seconds_left)
        return len(caplog.messages)

    assert warnings(SOON_SECONDS + 1) == 0
    assert warnings(SOON_SECONDS - 1) == 1
    assert warnings(SOON_SECONDS - 10) == 0
    assert warnings(SOON_SECONDS - DAY_SECONDS - 1) == 1
    assert "listener SSL: its certificate ends at" in caplog.text
    files.write("server.pem", make_certificate(authority(), "broker").pem())
    listener.update(listener.source(config))
    assert listener.end >= end
    assert warnings(-1) == 1
    assert "its certificate has ended at" in caplog.text


def test_the_metrics_have_the_end_of_each_listeners_certificate(tmp_path: Path) -> None:
    files, port = TlsFiles(tmp_path), free_port()
    wanted = x509.load_pem_x509_certificates(Path(files.server).read_bytes())[0].not_valid_after_utc
    with tls_broker(files, metrics__listener=f"127.0.0.1:{port}") as broker:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        assert any("listener SSL: its certificate ends at" in line for line in broker.log_lines())
    found = re.findall(r'^tidelog_certificate_end_seconds\{listener="(.*)"\} (\S+)', text, re.MULTILINE)
    assert [(name, float(end)) for name, end in found] == [("SSL", wanted.timestamp())]
