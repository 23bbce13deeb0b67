"""New keys are used for new connections, and no open connection notices."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.support.certificates import Signed, make_certificate
from tests.support.ports import free_ports
from tests.support.tls_broker import TlsFiles, another_authority, authority, tls_broker
from tests.support.wait import eventually
from tidelog import Admin, Producer
from tidelog.clients.admin import AlterConfigOp, ConfigResource, ResourceType
from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.server import tls_listeners
from tidelog.server.tls_listener import TlsListener, TlsSource
from tidelog.testing import Broker

LOCATION = "listener.name.ssl.ssl.keystore.location"


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


@pytest.fixture
def broker(files: TlsFiles) -> Iterator[Broker]:
    with tls_broker(files) as broker:
        broker.create_topic("events")
        yield broker


def serial(broker: Broker) -> int:
    """The serial number of the certificate that a new connection gets."""
    host, _, port = broker.address_of("SSL").rpartition(":")
    return _certificate(host, int(port)).serial_number


def _certificate(host: str, port: int) -> x509.Certificate:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, port), 20) as plain, context.wrap_socket(plain) as sock:
        found = sock.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found)


def alter(broker: Broker, **settings: str) -> None:
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        resource = ConfigResource(ResourceType.BROKER, "0")
        changes = [AlterConfigOp(name.replace("__", "."), value) for name, value in settings.items()]
        admin.incremental_alter_configs({resource: changes})


def new_certificate(files: TlsFiles, file: str = "server.pem", **made: object) -> Signed:
    signed = make_certificate(authority(), **{"name": "broker", **made})  # type: ignore[arg-type]
    files.write(file, signed.pem())
    return signed


def test_another_path_and_the_same_path_again(broker: Broker, files: TlsFiles) -> None:
    first = serial(broker)
    second = new_certificate(files, "second.pem")
    alter(broker, **{LOCATION: str(files.folder / "second.pem")})
    assert serial(broker) == second.certificate.serial_number != first
    third = new_certificate(files, "second.pem")
    alter(broker, **{LOCATION: str(files.folder / "second.pem")})
    assert serial(broker) == third.certificate.serial_number


def test_a_changed_file_is_found(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listeners, "CHECK_SECONDS", 0.05)
    with tls_broker(files) as broker:
        new = new_certificate(files)
        eventually(lambda: serial(broker) == new.certificate.serial_number, "the file is loaded")
        files.write("server.pem", "not a key")
        eventually(lambda: any("keeps its keys" in line for line in broker.log_lines()), "it is refused")
        assert serial(broker) == new.certificate.serial_number
        newer = new_certificate(files)
        eventually(lambda: serial(broker) == newer.certificate.serial_number, "the next file is loaded")
        assert len([line for line in broker.log_lines() if "keeps its keys" in line]) == 1


def test_a_look_that_fails_is_not_the_last_one(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listeners, "CHECK_SECONDS", 0.05)
    update, failed = TlsListener.update, threading.Event()

    def fail_once(listener: TlsListener, source: TlsSource) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("nobody expects this")
        update(listener, source)

    with tls_broker(files) as broker:
        monkeypatch.setattr(TlsListener, "update", fail_once)
        assert failed.wait(20)
        new = new_certificate(files)
        eventually(lambda: serial(broker) == new.certificate.serial_number, "the file is loaded")


def test_a_store_that_cannot_be_used_is_refused(broker: Broker, files: TlsFiles) -> None:
    before = serial(broker)
    broken = files.write("broken.pem", "no key")
    for path in (broken, str(files.folder / "missing.pem")):
        with pytest.raises(InvalidRequest, match=r"keystore\.location"):
            alter(broker, **{LOCATION: path})
    with pytest.raises(InvalidRequest, match="truststore"):
        alter(
            broker,
            listener__name__ssl__ssl__truststore__location=broken,
            listener__name__ssl__ssl__client__auth="required",
        )
    assert serial(broker) == before


def test_a_file_in_use_that_cannot_be_used_any_more_is_refused(broker: Broker, files: TlsFiles) -> None:
    """Kafka answers INVALID_CONFIG to the same path again, and INVALID_REQUEST to another path."""
    used = str(files.folder / "used.pem")
    new = new_certificate(files, "used.pem")
    alter(broker, **{LOCATION: used})
    files.write("used.pem", "no key")
    with pytest.raises(InvalidConfig, match=r"used\.pem"):
        alter(broker, **{LOCATION: used})
    assert serial(broker) == new.certificate.serial_number


@pytest.mark.parametrize(
    ("made", "message"),
    [({"name": "other"}, "ssl.allow.dn.changes"), ({"hosts": ("elsewhere",)}, "ssl.allow.san.changes")],
)
def test_other_names_are_refused(
    broker: Broker, files: TlsFiles, made: dict[str, object], message: str
) -> None:
    new_certificate(files, "other.pem", **made)
    with pytest.raises(InvalidRequest, match=message):
        alter(broker, **{LOCATION: str(files.folder / "other.pem")})


def test_other_names_can_be_allowed(files: TlsFiles) -> None:
    with tls_broker(files, ssl__allow__dn__changes=True, ssl__allow__san__changes=True) as broker:
        new = new_certificate(files, "other.pem", name="other", hosts=("elsewhere",))
        alter(broker, **{LOCATION: str(files.folder / "other.pem")})
        assert serial(broker) == new.certificate.serial_number


def test_brokers_have_to_trust_the_new_store(files: TlsFiles) -> None:
    with tls_broker(files, inter__broker__listener__name="SSL") as broker:
        stranger = make_certificate(another_authority(), "broker")
        with pytest.raises(InvalidRequest, match="cannot connect to each other"):
            alter(broker, **{LOCATION: files.write("stranger.pem", stranger.pem())})


def test_client_certificates_can_be_required_while_the_broker_runs(broker: Broker, files: TlsFiles) -> None:
    context = files.client_context(files.client("alice"))
    alter(broker, listener__name__ssl__ssl__client__auth="required")
    host, _, port = broker.address_of("SSL").rpartition(":")
    with socket.create_connection((host, int(port)), 20) as plain, context.wrap_socket(
        plain, server_hostname="localhost"
    ) as sock:
        sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\xff\xff")
        assert sock.recv(100)
    context = files.client_context()
    with (
        socket.create_connection((host, int(port)), 20) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\xff\xff")
        if not sock.recv(100):
            raise ConnectionError


def test_traffic_goes_on_while_keys_change(broker: Broker, files: TlsFiles) -> None:
    settings = {"bootstrap.servers": broker.address_of("SSL"), "acks": "all", **files.client_settings()}
    stop = threading.Event()
    offsets: list[int] = []
    errors: list[BaseException] = []

    def produce() -> None:
        try:
            with Producer(settings) as producer:
                while not stop.is_set():
                    offsets.append(producer.send("events", value=b"x" * 20_000).result(10).offset)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for number in range(5):
            count = len(offsets)
            eventually(lambda count=count: len(offsets) > count + 5 or errors, "records are written")
            new = new_certificate(files, f"{number}.pem")
            alter(broker, **{LOCATION: str(files.folder / f"{number}.pem")})
            assert serial(broker) == new.certificate.serial_number
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert offsets == list(range(len(offsets)))
    # The producer kept the connections that it had.
    assert not any("lost" in line for line in broker.log_lines())


def test_the_metrics_port_has_tls_and_new_keys(files: TlsFiles) -> None:
    settings = {"listener__name__metrics__ssl__client__auth": "required", "ssl__allow__dn__changes": True}
    (port,) = free_ports(1)
    with tls_broker(files, metrics__listener=f"https://localhost:{port}", **settings) as broker:
        context = files.client_context(files.client("prometheus"))
        assert b"200 OK" in _get(port, context)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _get(port, files.client_context())
        new_certificate(files, "metrics.pem", name="metrics")
        alter(broker, listener__name__metrics__ssl__keystore__location=str(files.folder / "metrics.pem"))
        with (
            socket.create_connection(("localhost", port), 20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            found = sock.getpeercert(binary_form=True)
        assert found is not None
        subject = x509.load_der_x509_certificate(found).subject
        assert subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "metrics"


def test_the_metrics_port_asks_for_certificates_and_versions_that_are_set_while_it_runs(
    files: TlsFiles,
) -> None:
    (port,) = free_ports(1)
    with tls_broker(files, metrics__listener=f"https://localhost:{port}") as broker:
        anybody, prometheus = files.client_context(), files.client_context(files.client("prometheus"))
        assert b"200 OK" in _get(port, anybody)
        alter(broker, listener__name__metrics__ssl__client__auth="required")
        assert b"200 OK" in _get(port, prometheus)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _get(port, anybody)
        alter(broker, listener__name__metrics__ssl__enabled__protocols="TLSv1.3")
        assert b"200 OK" in _get(port, prometheus)
        prometheus.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _get(port, prometheus)


def _get(port: int, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection(("localhost", port), 20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        sock.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        answer = sock.recv(1000)
        if not answer:
            raise ConnectionError
        return answer
