"""`tidelog security init`: private files that fit together, and that nothing overwrites unasked."""

from __future__ import annotations

import itertools
import shutil
import ssl
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from tidelog.cli.main import main
from tidelog.config.properties import read_properties
from tidelog.security import security_folder
from tidelog.security.certificate_renewal import CertificateRenewal
from tidelog.security.certificates import general_name
from tidelog.security.key_stores import load_trusted
from tidelog.security.security_folder import FolderRefused, SecurityFolder, write_private
from tidelog.security.tls import TlsSettings, client_context, server_context


def init(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["security", "init", str(folder), *arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("init") / "security"
    result = init(made, "--brokers", "2", "--san", "kafka.example,10.0.0.7", "--days", "30")
    assert result.exit_code == 0, result.output
    return made


def secrets_of(folder: Path) -> set[str]:
    """Every password in the settings, also of the stores that are only named in comments."""
    found = set()
    for file in folder.glob("*.properties"):
        for line in file.read_text().splitlines():
            name, _, value = line.removeprefix("#").partition("=")
            if name.endswith("password"):
                found.add(value)
            elif name.endswith("jaas.config"):
                found.add(value.split('password="')[1].split('"')[0])
    return found


def test_only_the_owner_reads_the_folder_and_its_files(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_the_files_are_those_of_the_table(folder: Path) -> None:
    stores = {f"{name}.{end}" for name in ("broker-1", "broker-2", "client", "admin")
              for end in ("pem", "p12", "properties")}  # fmt: skip
    assert {file.name for file in folder.iterdir()} == stores | {
        "ca.key", "ca.pem", "truststore.p12", "scram-users.json",
    }  # fmt: skip


def test_a_broker_certificate_has_the_names_the_days_and_both_uses(folder: Path) -> None:
    found = x509.load_pem_x509_certificates((folder / "broker-2.pem").read_bytes())[0]
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    wanted = ("localhost", "127.0.0.1", "kafka.example", "10.0.0.7")
    assert list(names) == [general_name(name) for name in wanted]
    assert (found.not_valid_after_utc - found.not_valid_before_utc).days == 30
    uses = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {use.dotted_string for use in uses} == {"1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"}
    assert isinstance(found.public_key(), ec.EllipticCurvePublicKey)


def test_a_client_shakes_hands_with_a_broker_and_each_checks_the_other(folder: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "broker-1.pem")
    server.load_verify_locations(folder / "ca.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    client.load_cert_chain(folder / "client.pem")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(incoming, outgoing, server_hostname="kafka.example")
    with pytest.raises(ssl.SSLWantReadError):
        ours.do_handshake()
    theirs = server.wrap_bio(outgoing, incoming, server_side=True)
    for side in (theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate = theirs.getpeercert()
    assert certificate is not None
    assert certificate["subject"] == ((("commonName", "client"),),)


def test_the_pkcs12_stores_hold_the_same_key_and_open_with_the_password_of_the_settings(folder: Path) -> None:
    lines = (folder / "admin.properties").read_text().splitlines()
    values = dict(line.removeprefix("#").partition("=")[::2] for line in lines)
    found = pkcs12.load_pkcs12((folder / "admin.p12").read_bytes(), values["ssl.keystore.password"].encode())
    assert found.cert is not None
    assert found.cert.certificate == x509.load_pem_x509_certificates((folder / "admin.pem").read_bytes())[0]


def test_no_password_is_printed_and_every_password_is_another(tmp_path: Path) -> None:
    result = init(tmp_path / "s", "--brokers", "1")
    passwords = secrets_of(tmp_path / "s")
    # Three users, three key stores, one trust store.
    assert len(passwords) == 7
    assert not [password for password in passwords if password in result.output]
    users = (tmp_path / "s" / "scram-users.json").read_text()
    assert not [password for password in passwords if password in users]


def test_nothing_is_overwritten_without_force(folder: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    result = init(folder)
    assert result.exit_code == 1
    assert "--force" in result.output
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    foreign = tmp_path / "home"
    foreign.mkdir(mode=0o755)
    (foreign / "letter.txt").write_text("dear")
    assert init(foreign).exit_code == 1
    assert stat.S_IMODE(foreign.stat().st_mode) == 0o755


def test_force_makes_new_keys_for_the_owner_alone_and_follows_no_link(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    assert init(folder, "--brokers", "1").exit_code == 0
    (folder / "ca.key").unlink()
    (folder / "ca.key").symlink_to(tmp_path / "elsewhere")
    (folder / "admin.pem").chmod(0o644)
    assert init(folder, "--brokers", "1", "--force").exit_code == 0
    assert not (tmp_path / "elsewhere").exists()
    assert stat.S_IMODE((folder / "admin.pem").stat().st_mode) == 0o600


def test_brokers_on_several_hosts_listen_everywhere_and_tell_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    result = init(
        folder, "--hosts", "a.example,b.example", "--port", "9300", "--key-type", "rsa",
        "--store-type", "pkcs12", "--path", "/etc/tidelog", "--zookeeper", "zk:2181/kafka",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "--command-config /etc/tidelog/admin.properties" in result.output
    assert "copy to /etc/tidelog, each with truststore.p12: broker-N files" in result.output
    settings = read_properties(folder / "broker-2.properties")
    assert settings["listeners"] == "SASL_SSL://0.0.0.0:9300"
    assert settings["advertised.listeners"] == "SASL_SSL://b.example:9300"
    assert settings["ssl.keystore.location"] == "/etc/tidelog/broker-2.p12"
    assert settings["zookeeper.connect"] == "zk:2181/kafka"
    # Two brokers cannot have the three replicas of Kafka's defaults.
    assert settings["offsets.topic.replication.factor"] == "2"
    assert settings["transaction.state.log.replication.factor"] == "2"
    assert settings["transaction.state.log.min.isr"] == "2"
    client = read_properties(folder / "client.properties")
    assert client["bootstrap.servers"] == "a.example:9300,b.example:9300"
    found = x509.load_pem_x509_certificates((folder / "broker-1.pem").read_bytes())[0]
    assert isinstance(found.public_key(), rsa.RSAPublicKey)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert general_name("a.example") in list(names)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--brokers", "2", "--hosts", "a"),
        ("--hosts", ","),
        ("--hosts", "a,a"),
        ("--port", "65535", "--brokers", "2"),
        ("--san", "a..b"),
        ("--days", "0"),
        ("--key-type", "DSA"),
    ],
)
def test_wrong_flags_are_refused_before_a_file_is_made(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = init(tmp_path / "s", *arguments)
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.output
    assert not (tmp_path / "s").exists()


def test_a_folder_of_too_few_brokers_says_so(folder: Path) -> None:
    found = SecurityFolder(folder)
    assert found.broker_count() == 2
    with pytest.raises(FolderRefused, match=r"no broker-3\.properties"):
        found.broker_properties(3)
    (folder.parent / "empty").mkdir()
    with pytest.raises(FolderRefused, match=r"scram-users\.json"):
        SecurityFolder(folder.parent / "empty").users()


def certificate_of(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificates(file.read_bytes())[0]


@pytest.mark.parametrize("key_type", ["EC", "RSA"])
def test_certificates_are_renewed_and_the_rest_stays(tmp_path: Path, key_type: str) -> None:
    folder = tmp_path / "security"
    names = ("--brokers", "1", "--san", "kafka.example,10.0.0.7")
    assert init(folder, *names, "--days", "3", "--key-type", key_type).exit_code == 0
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    old = certificate_of(folder / "broker-1.pem")
    result = CliRunner().invoke(main, ["security", "renew", str(folder), "--days", "90"])
    assert result.exit_code == 0, result.output
    after = {file.name: file.read_bytes() for file in folder.iterdir()}
    renewed = {f"{name}.{end}" for name in ("broker-1", "client", "admin") for end in ("pem", "p12")}
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == renewed
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    new = certificate_of(folder / "broker-1.pem")
    new.verify_directly_issued_by(certificate_of(folder / "ca.pem"))
    assert (new.not_valid_after_utc - new.not_valid_before_utc).days == 90
    assert new.public_key() != old.public_key()
    assert new.subject == old.subject
    for kind in (x509.SubjectAlternativeName, x509.ExtendedKeyUsage, x509.KeyUsage):
        assert new.extensions.get_extension_for_class(kind) == old.extensions.get_extension_for_class(kind)
    password = next(
        line.partition("=")[2]
        for line in (folder / "broker-1.properties").read_text().splitlines()
        if line.removeprefix("#").startswith("ssl.keystore.password=")
    )
    store = pkcs12.load_pkcs12((folder / "broker-1.p12").read_bytes(), password.encode())
    assert store.cert is not None
    assert store.cert.certificate == new


def test_a_folder_that_cannot_renew_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    assert init(folder, "--brokers", "1").exit_code == 0
    with pytest.raises(FolderRefused, match=r"the authority is valid until .*: name fewer --days"):
        CertificateRenewal(folder).renew(36_500)
    (folder / "ca.key").unlink()
    with pytest.raises(FolderRefused, match="only the folder with the authority's key can renew"):
        CertificateRenewal(folder).renew(30)


def renew(folder: Path, *flags: str) -> Result:
    return CliRunner().invoke(main, ["security", "renew", str(folder), *flags])


def connects(server: Path, client: Path) -> bool:
    """Whether a client connects to a broker. Their files are from two states of the folder."""
    stores = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}

    def settings(folder: Path, name: str) -> TlsSettings:
        files = {
            "ssl.keystore.location": str(folder / f"{name}.pem"),
            "ssl.truststore.location": str(folder / "ca.pem"),
            "ssl.client.auth": "required",
            "ssl.endpoint.identification.algorithm": "",
        }
        return TlsSettings.of({**stores, **files})

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client_context(settings(client, "client")).wrap_bio(to_client, to_server),
        server_context(settings(server, "broker-1")).wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return not sides


def java_trusts(folder: Path) -> int:
    """How many certificates the trust store has that carry Java's mark."""
    lines = (folder / "admin.properties").read_text().splitlines()
    values = dict(line.removeprefix("#").partition("=")[::2] for line in lines)
    settings = {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(folder / "truststore.p12"),
        "ssl.truststore.password": values["ssl.truststore.password"],
    }
    trusted = load_trusted(TlsSettings.of(settings).trust_store)
    assert isinstance(trusted, str)
    return trusted.count("BEGIN CERTIFICATE")


@pytest.mark.parametrize("key_type", ["EC", "RSA"])
def test_a_new_authority_replaces_the_old_one_in_three_steps(tmp_path: Path, key_type: str) -> None:
    """Between two steps, brokers and clients with the files of either one trust each other."""
    folder = tmp_path / "security"
    assert init(folder, "--brokers", "1", "--key-type", key_type).exit_code == 0
    states = [tmp_path / f"state-{number}" for number in range(4)]
    shutil.copytree(folder, states[0])
    for flags, state in (([], None), (["--new-authority"], 1), ([], 2), (["--drop-authority"], 3)):
        result = renew(folder, *flags)
        assert result.exit_code == 0, result.output
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
        if state is not None:
            shutil.copytree(folder, states[state])
    for one, other in itertools.pairwise(states):
        assert connects(one, other)
        assert connects(other, one)
    assert not connects(states[0], states[3])
    assert not connects(states[3], states[0])
    assert [java_trusts(state) for state in states] == [1, 2, 2, 1]
    settings = {file.name: file.read_bytes() for file in states[0].glob("*.properties")}
    assert {file.name: file.read_bytes() for file in folder.glob("*.properties")} == settings
    assert (folder / "scram-users.json").read_bytes() == (states[0] / "scram-users.json").read_bytes()
    assert {file.name for file in folder.iterdir()} == {file.name for file in states[0].iterdir()}
    assert renew(folder).exit_code == 0, "the folder goes on with the new authority"


def test_the_steps_to_a_new_authority_keep_their_order(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    assert init(folder, "--brokers", "1").exit_code == 0
    for flags, message in (
        (["--drop-authority"], "has one authority only"),
        (["--new-authority", "--drop-authority"], "cannot be specified together"),
    ):
        result = renew(folder, *flags)
        assert result.exit_code != 0
        assert message in result.output
    assert renew(folder, "--new-authority").exit_code == 0
    assert "is a new authority already" in renew(folder, "--new-authority").output
    assert "has signed nothing yet: call renew first" in renew(folder, "--drop-authority").output
    shutil.copy(folder / "client.pem", tmp_path / "client.pem")
    assert renew(folder).exit_code == 0
    shutil.copy(tmp_path / "client.pem", folder / "client.pem")
    found = renew(folder, "--drop-authority").output
    assert "client.pem is signed by an authority that would be dropped" in found
    assert renew(folder).exit_code == 0
    assert renew(folder, "--drop-authority").exit_code == 0


def test_a_new_authority_needs_no_key_of_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    assert init(folder, "--brokers", "1").exit_code == 0
    (folder / "ca.key").unlink()
    for flags in (["--new-authority"], [], ["--drop-authority"], []):
        result = renew(folder, *flags)
        assert result.exit_code == 0, result.output
    assert connects(folder, folder)
    (folder / "ca.pem").write_text("no certificate")
    assert "ca.pem" in renew(folder, "--new-authority").output


@pytest.mark.parametrize("stop_after", [0, 2, 3, 6, 8, 10])
def test_an_interrupted_step_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    """After a full disk the files still fit together, and the next call ends the step."""
    folder = tmp_path / "security"
    assert init(folder, "--brokers", "1").exit_code == 0
    written = itertools.count()

    def write(file: Path, content: bytes) -> None:
        if next(written) == stop_after:
            raise OSError(28, "No space left on device", str(file))
        write_private(file, content)

    for flags in (["--new-authority"], [], ["--drop-authority"]):
        with monkeypatch.context() as patch:
            patch.setattr(security_folder, "write_private", write)
            result = renew(folder, *flags)
        if result.exit_code:
            assert "No space left on device" in result.output
            assert connects(folder, folder)
            result = renew(folder, *flags)
        assert result.exit_code == 0, result.output
        assert connects(folder, folder)


def add_brokers(folder: Path, *flags: str) -> Result:
    return CliRunner().invoke(main, ["security", "add-brokers", str(folder), *flags])


@pytest.mark.parametrize("store_type", ["PEM", "PKCS12"])
def test_brokers_are_added_with_the_settings_of_the_first(tmp_path: Path, store_type: str) -> None:
    folder = tmp_path / "security"
    installed = ("--path", "/etc/tidelog", "--zookeeper", "zk:2181", "--store-type", store_type)
    assert init(folder, "--hosts", "a.example,b.example", *installed).exit_code == 0
    first = folder / "broker-1.properties"
    first.write_text(f"{first.read_text()}log.dirs=/data\n")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    result = add_brokers(folder, "--hosts", "c.example,d.example", "--san", "kafka.example", "--days", "9")
    assert result.exit_code == 0, result.output
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir() if file != first} == {0o600}
    added = {f"broker-{number}.{end}" for number in (3, 4) for end in ("pem", "p12", "properties")}
    after = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert after.keys() - before.keys() == added
    assert {name for name in before if after[name] != before[name]} == {
        "admin.properties",
        "client.properties",
    }
    one, four = read_properties(first), read_properties(folder / "broker-4.properties")
    own = {"broker.id", "advertised.listeners", "ssl.keystore.location"}
    own |= {"ssl.keystore.password", "ssl.key.password"} if store_type == "PKCS12" else set()
    assert one.keys() == four.keys()
    assert {name for name in one if one[name] != four[name]} == own
    assert four["advertised.listeners"] == "SASL_SSL://d.example:9092"
    end = "pem" if store_type == "PEM" else "p12"
    assert four["ssl.keystore.location"] == f"/etc/tidelog/broker-4.{end}"
    bootstrap = read_properties(folder / "client.properties")["bootstrap.servers"]
    assert bootstrap == ",".join(f"{host}.example:9092" for host in "abcd")
    certificate = certificate_of(folder / "broker-4.pem")
    certificate.verify_directly_issued_by(certificate_of(folder / "ca.pem"))
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {general_name("d.example"), general_name("kafka.example")} <= set(found)
    password = next(
        line.partition("=")[2]
        for line in (folder / "broker-4.properties").read_text().splitlines()
        if line.removeprefix("#").startswith("ssl.keystore.password=")
    )
    store = pkcs12.load_pkcs12((folder / "broker-4.p12").read_bytes(), password.encode())
    assert store.cert is not None
    assert store.cert.certificate == certificate


def test_brokers_are_added_on_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    assert init(folder, "--brokers", "1").exit_code == 0
    assert add_brokers(folder, "--brokers", "2").exit_code == 0
    found = SecurityFolder(folder)
    assert found.broker_count() == 3
    assert read_properties(found.broker_properties(3))["listeners"] == "SASL_SSL://localhost:9094"
    assert renew(folder).exit_code == 0, "their certificates are renewed with the others"


def test_brokers_that_cannot_be_added_change_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    assert init(folder, "--hosts", "a.example").exit_code == 0
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    for flags, message in (
        ((), "name --brokers or --hosts"),
        (("--hosts", "b.example,a.example"), "has a broker at a.example:9092 already"),
        (("--hosts", "b..example"), "neither an address nor the name of a host"),
        (("--hosts", "b.example", "--days", "36500"), "the authority is valid until"),
    ):
        result = add_brokers(folder, *flags)
        assert result.exit_code != 0
        assert message in result.output
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    (tmp_path / "empty").mkdir()
    assert "call tidelog security init first" in add_brokers(tmp_path / "empty", "--brokers", "1").output
