"""`tidelog bundle`: everything that helps is in it, and no secret, wherever secrets were."""

from __future__ import annotations

import json
import stat
import tarfile
import time
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.client_tools import NewName, make_topic, runner
from tests.support.group_members import Members
from tests.support.scale import scale
from tidelog.cli.bundle_parts import lines_since, scraped
from tidelog.cli.main import main
from tidelog.cli.redaction import REMOVED, Redactor, is_secret_name
from tidelog.testing import Broker

SECRETS = [f"S3CRET-{number}-planted" for number in range(20)]

LOG = f"""\
2099-01-01 10:00:00,123 INFO sasl.jaas.config = x.PlainLoginModule required password="{SECRETS[0]}";
2099-01-01 10:00:01 WARN ssl.keystore.password={SECRETS[1]}, other=fine
2099-01-01 10:00:02 INFO {{"client_secret": "{SECRETS[2]}", "keep": "kept"}}
2099-01-01 10:00:03 INFO Authorization: Bearer {SECRETS[3]}
2099-01-01 10:00:04 INFO s3://user:{SECRETS[4]}@host/bucket
  at a line that belongs to the one before, aws_secret_access_key: {SECRETS[5]}
-----BEGIN PRIVATE KEY-----
{SECRETS[6]}
-----END PRIVATE KEY-----
2099-01-01 10:00:05 INFO the client said {SECRETS[7]} in plain words
2000-01-01 10:00:00 INFO too old to matter
"""


def contents(path: Path) -> dict[str, str]:
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read().decode() for info in tar}  # type: ignore[union-attr]


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_everything_but_secrets(
    suffix: str, tmp_path: Path, new_name: NewName, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "server.log").write_text(LOG)
    client = tmp_path / "client.properties"
    client.write_text(f"ssl.key.password={SECRETS[7]}\nclient.id=me\n")
    server = tmp_path / "server.properties"
    server.write_text(
        f"broker.id=1\nssl.keystore.password={SECRETS[8]}\nlistener.name.x.plain.sasl.jaas.config="
        f'y.PlainLoginModule required password="{SECRETS[9]}" user_a="{SECRETS[10]}";\n'
    )
    monkeypatch.setenv("MY_PASSWORD", SECRETS[11])
    out = tmp_path / f"bundle{suffix}"
    config = {"metrics.listener": "127.0.0.1:0", "ssl.truststore.password": SECRETS[12]}
    with Broker(config) as broker:
        tool = runner(broker.bootstrap_servers)
        topic, group = make_topic(tool, new_name("t"), 2, "retention.ms=5000"), new_name("g")
        Members(broker.bootstrap_servers).commit(group, {(topic, 0): 0})
        result = tool(
            *("bundle", "--to", str(out), "--command-config", str(client), "--logs", str(logs)),
            *("--broker-config", str(server), "--metrics", "127.0.0.1:1", "--metrics-interval", "0"),
        )
    assert result.exit_code == 0, result.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    found = contents(out)
    everything = "\n".join(found.values()) + result.output
    assert [secret for secret in SECRETS if secret in everything] == []
    assert {
        "versions.json", "doctor.json", "client.json", "health.json", "cluster.json", "broker-configs.json",
        "topics.json", "topic-configs.json", "offsets.csv", "groups.json", "log-dirs.json",
        "transactions.json", "logs/0-server.log", "broker-files/0-server.properties.json", "errors.txt",
    } <= found.keys()  # fmt: skip
    assert json.loads(found["topic-configs.json"])[topic]["retention.ms"]["value"] == "5000"
    assert group in found["groups.json"]
    assert f"{topic},1,0,0" in found["offsets.csv"]
    assert "kept" in found["logs/0-server.log"]
    assert "too old" not in found["logs/0-server.log"]
    assert "metrics/0-1.txt" in found["errors.txt"], "a part that fails does not end the others"
    assert json.loads(found["client.json"])["ssl.key.password"] == REMOVED


def test_names_and_times_are_checked(tmp_path: Path) -> None:
    tool = runner("127.0.0.1:1")
    assert "--to is x.txt" in tool("bundle", "--to", "x.txt").stderr
    assert "is no time" in tool("bundle", "--to", str(tmp_path / "a.zip"), "--since", "x").stderr
    assert not (tmp_path / "a.zip").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "http://127.0.0.1:1", "http://127.0.0.1:1/metrics"])
def test_metrics_are_asked_for_at_any_form_of_the_address(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def urlopen(url: str, timeout: float) -> BytesIO:
        asked.append(url)
        return BytesIO(b"up 1\n")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    assert scraped(address) == "up 1\n"
    assert asked == ["http://127.0.0.1:1/metrics"]


def test_the_servers_of_the_settings_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVER", "127.0.0.1:2")
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\n")
    call = ["bundle", "--to", str(tmp_path / "b.zip"), "--command-config", str(file)]
    assert "no broker answered at 127.0.0.1:1:" in CliRunner().invoke(main, call).stderr


def test_lines_since_a_time(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("[2020-01-01 00:00:00,1] a\n b\n[2030-01-01 00:00:00,1] c\n d\n")
    assert lines_since(log, 1_700_000_000_000) == "[2030-01-01 00:00:00,1] c\n d\n"


@pytest.mark.parametrize(
    "name",
    ["ssl.key.password", "sasl.jaas.config", "aws_secret_access_key", "ssl.keystore.key", "API_KEY"],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["retention.ms", "partition", "ssl.keystore.location", "key.deserializer", "topic"]
)
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@settings(max_examples=scale(30, 1000))
@given(st.text(min_size=4, max_size=12), st.text(max_size=20), st.text(max_size=20))
def test_a_known_secret_is_removed_wherever_it_is(secret: str, before: str, behind: str) -> None:
    shown = Redactor([secret]).text(before + secret + behind)
    assert secret not in shown.replace(REMOVED, "") or secret in (before + behind)


@pytest.mark.parametrize("word", ["a", "a-", "a.b_", "a/", '"a'])
def test_a_long_word_takes_no_longer_than_many_short_ones(word: str) -> None:
    """A line of a log may be a large value in base64."""
    text = word * (60_000 // len(word))
    before = time.process_time()
    assert Redactor(["hunter2"]).text(text) == text
    assert time.process_time() - before < 1.0


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("at -https://me:hunter2@host", "at -https://me:[removed]@host"),
        ("1https://me:hunter2@host", "1https://me:[removed]@host"),
        ('x"db.password"="hunter2"', 'x"db.password"="[removed]"'),
        ("my-ssl.key.password=hunter2", "my-ssl.key.password=[removed]"),
    ],
)
def test_secrets_in_texts(text: str, kept: str) -> None:
    assert Redactor().text(text) == kept
