"""TLS contexts from settings: whom they trust, what they accept, and what they say about wrong settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.security.handshake import shake_hands
from tests.support.certificates import Signed, make_authority, make_certificate
from tidelog.config import ConfigError
from tidelog.security.cipher_suites import openssl_name
from tidelog.security.tls import TlsSettings, client_context, server_context


@pytest.fixture(scope="module")
def authority() -> Signed:
    return make_authority()


@pytest.fixture(scope="module")
def server(authority: Signed) -> Signed:
    return make_certificate(authority)


@pytest.fixture(scope="module")
def client(authority: Signed) -> Signed:
    return make_certificate(authority, "client", hosts=())


def listener(server: Signed, **given: str) -> ssl.SSLContext:
    """The context of a listener with the key in its settings."""
    inline = {"ssl.keystore.key": server.key_pem(), "ssl.keystore.certificate.chain": server.chain_pem}
    return server_context(TlsSettings.of(inline | named(given)))


def trusting(authority: Signed, **given: str) -> ssl.SSLContext:
    inline = {"ssl.truststore.certificates": authority.certificate_pem}
    return client_context(TlsSettings.of(inline | named(given)))


def named(given: dict[str, str]) -> dict[str, str]:
    return {"ssl." + name.replace("_", "."): value for name, value in given.items()}


def test_a_client_trusts_a_listener_by_the_settings(authority: Signed, server: Signed) -> None:
    ours, _ = shake_hands(listener(server), trusting(authority))
    assert ours.version() == "TLSv1.3"


def test_keys_and_certificates_come_from_files_as_well(
    authority: Signed, server: Signed, tmp_path: Path
) -> None:
    (tmp_path / "server.pem").write_text("# our server\n" + server.pem("pass word"))
    (tmp_path / "trusted.pem").write_text(authority.certificate_pem)
    context = server_context(
        TlsSettings.of(
            named({"keystore_location": str(tmp_path / "server.pem"), "key_password": "pass word"})
        )
    )
    trust = client_context(TlsSettings.of(named({"truststore_location": str(tmp_path / "trusted.pem")})))
    shake_hands(context, trust)


def test_a_block_on_one_line_is_read(authority: Signed, server: Signed) -> None:
    """A properties file joins continued lines."""
    one_line = {
        "keystore_key": server.key_pem().replace("\n", " "),
        "keystore_certificate_chain": server.chain_pem.replace("\n", " "),
    }
    context = server_context(TlsSettings.of(named(one_line)))
    shake_hands(
        context, trusting(authority, truststore_certificates=authority.certificate_pem.replace("\n", ""))
    )


def test_a_chain_is_sent_whole(authority: Signed) -> None:
    middle = make_authority("middle", authority)
    shake_hands(listener(make_certificate(middle)), trusting(authority))


def test_a_certificate_in_the_trust_store_is_trusted_without_its_authority(server: Signed) -> None:
    shake_hands(listener(server), trusting(server))


@pytest.mark.parametrize("algorithm", ["https", "HTTPS"])
def test_the_host_name_is_checked(authority: Signed, server: Signed, algorithm: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(
            listener(server), trusting(authority, endpoint_identification_algorithm=algorithm), "elsewhere"
        )


def test_any_host_name_is_accepted_if_the_algorithm_is_empty(authority: Signed, server: Signed) -> None:
    shake_hands(listener(server), trusting(authority, endpoint_identification_algorithm=""), "elsewhere")


def test_a_stranger_is_not_trusted(server: Signed) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake_hands(listener(server), trusting(make_authority("stranger")))


def test_client_certificates_are_required_requested_or_ignored(
    authority: Signed, server: Signed, client: Signed
) -> None:
    trusted = {"truststore_certificates": authority.certificate_pem}
    required = listener(server, client_auth="required", **trusted)
    requested = listener(server, client_auth="requested", **trusted)
    known = trusting(authority, keystore_key=client.key_pem(), keystore_certificate_chain=client.chain_pem)
    stranger = make_certificate(make_authority("stranger"), "stranger", hosts=())
    unknown = trusting(
        authority, keystore_key=stranger.key_pem(), keystore_certificate_chain=stranger.chain_pem
    )
    ours, _ = shake_hands(required, known)
    assert ours.getpeercert(binary_form=True) is not None
    shake_hands(requested, trusting(authority))
    for context in (required, requested):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(context, unknown)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(required, trusting(authority))
    ours, _ = shake_hands(listener(server), known)
    assert ours.getpeercert(binary_form=True) is None


@pytest.mark.parametrize(
    ("given", "version"),
    [
        ({"enabled_protocols": "TLSv1.2"}, "TLSv1.2"),
        ({"enabled_protocols": "TLSv1.3"}, "TLSv1.3"),
        ({"enabled_protocols": "TLSv1.1,TLSv1.2"}, "TLSv1.2"),
        ({"enabled_protocols": "", "protocol": "TLSv1.2"}, "TLSv1.2"),
        ({"cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, "TLSv1.2"),
    ],
)
def test_versions_are_limited(authority: Signed, server: Signed, given: dict[str, str], version: str) -> None:
    ours, _ = shake_hands(listener(server, **given), trusting(authority))
    assert ours.version() == version


def test_suites_have_the_names_of_java(authority: Signed, server: Signed) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    ours, _ = shake_hands(listener(server, cipher_suites=suite), trusting(authority))
    cipher = ours.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-CHACHA20-POLY1305"


@pytest.mark.parametrize("suite", ["TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"])
def test_suites_of_tls_1_3_are_chosen(authority: Signed, server: Signed, suite: str) -> None:
    both = f"{suite},TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    ours, _ = shake_hands(listener(server, cipher_suites=both), trusting(authority))
    assert (ours.version(), (ours.cipher() or ("",))[0]) == ("TLSv1.3", suite)
    _, theirs = shake_hands(listener(server), trusting(authority, cipher_suites=suite))
    assert (theirs.version(), (theirs.cipher() or ("",))[0]) == ("TLSv1.3", suite)


def test_suites_that_python_cannot_choose_are_refused(
    server: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.security.cipher_suites._call_openssl", lambda context, suites: None)
    with pytest.raises(ConfigError, match=r"^ssl\.cipher\.suites=.*: this Python cannot choose among"):
        listener(server, cipher_suites="TLS_AES_128_GCM_SHA256")


@pytest.mark.parametrize(
    ("iana", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_DHE_RSA_WITH_AES_128_CBC_SHA256", "DHE-RSA-AES128-SHA256"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA", "AES256-SHA"),
        ("TLS_RSA_WITH_3DES_EDE_CBC_SHA", "DES-CBC3-SHA"),
        ("TLS_RSA_WITH_AES_128_CCM_8", "AES128-CCM8"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CCM", "ECDHE-ECDSA-AES256-CCM"),
        ("ECDHE-RSA-AES256-SHA", "ECDHE-RSA-AES256-SHA"),
    ],
)
def test_the_names_of_suites(iana: str, openssl: str) -> None:
    assert openssl_name(iana) == openssl


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"^ssl\.keystore\.location: needed by a listener"),
        (
            {"keystore_location": "/nowhere.pem"},
            r"^ssl\.keystore\.location=/nowhere\.pem: .* cannot be read: No such",
        ),
        ({"keystore_key": "KEY"}, r"^ssl\.keystore\.certificate\.chain: needed with ssl\.keystore\.key"),
        ({"keystore_certificate_chain": "CHAIN"}, r"^ssl\.keystore\.key: needed with"),
        (
            {"keystore_key": "LOCKED", "keystore_certificate_chain": "CHAIN"},
            r"^ssl\.key\.password: needed: the key",
        ),
        (
            {"keystore_key": "LOCKED", "keystore_certificate_chain": "CHAIN", "key_password": "wrong word"},
            r"^ssl\.key\.password=\[hidden\]: this password does not open the key",
        ),
        (
            {"keystore_key": "KEY", "keystore_certificate_chain": "OTHER"},
            r"^ssl\.keystore\.key=\[hidden\]: the private key does not belong",
        ),
        (
            {"keystore_key": "KEY", "keystore_certificate_chain": "no chain"},
            r"^ssl\.keystore\.key=\[hidden\]: .* in PEM: certificates missing",
        ),
        (
            {"keystore_key": "KEY", "keystore_certificate_chain": "CHAIN", "keystore_type": "JKS"},
            r"^ssl\.keystore\.type=JKS: expected PEM",
        ),
        ({"client_auth": "maybe"}, r"^ssl\.client\.auth=maybe: expected one of required"),
        (
            {"enabled_protocols": "TLSv1.1"},
            r"^ssl\.enabled\.protocols=TLSv1\.1: expected TLSv1\.2 or TLSv1\.3",
        ),
        ({"enabled_protocols": "TLSv9"}, r"^ssl\.enabled\.protocols=TLSv9: expected a list of TLSv1\.2"),
        (
            {"cipher_suites": "TLS_RSA_WITH_NONSENSE"},
            r"^ssl\.cipher\.suites=.*: OpenSSL does not know the suite",
        ),
        (
            {"cipher_suites": "TLS_AES_256_GCM_SHA384", "enabled_protocols": "TLSv1.2"},
            r"^ssl\.cipher\.suites=.*: no suite of TLSv1\.2",
        ),
        (
            {"client_auth": "required", "truststore_certificates": "nothing"},
            r"^ssl\.truststore\.certificates=\[hidden\]: expected certificates in PEM",
        ),
    ],
)
def test_an_error_names_the_setting_and_no_secret(
    authority: Signed, server: Signed, given: dict[str, str], message: str
) -> None:
    words = {
        "KEY": server.key_pem(),
        "LOCKED": server.key_pem("right word"),
        "CHAIN": server.chain_pem,
        "OTHER": authority.certificate_pem,
    }
    found = {name: words.get(value, value) for name, value in given.items()}
    if given and not any(name.startswith("keystore") for name in given):
        found |= {"keystore_key": words["KEY"], "keystore_certificate_chain": words["CHAIN"]}
    with pytest.raises(ConfigError, match=message) as caught:
        server_context(TlsSettings.of(named(found)))
    assert "word" not in str(caught.value).replace("password", "")
    assert "BEGIN" not in str(caught.value)


def test_an_error_has_the_prefix_of_the_listener() -> None:
    with pytest.raises(ConfigError, match=r"^listener\.name\.outer\.ssl\.keystore\.location: needed"):
        server_context(TlsSettings.of({}, "listener.name.outer."))


def test_a_wrong_algorithm_of_host_names_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"identification\.algorithm=ldaps: expected https, or nothing"):
        client_context(TlsSettings(endpoint_identification_algorithm="ldaps"))


def test_settings_show_no_secret(server: Signed) -> None:
    settings = TlsSettings.of({"ssl.keystore.key": server.key_pem(), "ssl.key.password": "pass word"})
    assert "BEGIN" not in repr(settings)
    assert "pass word" not in repr(settings)
