"""What surrounds a run: settings, finding pipelines, status and locks, reasons, and the tool's words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.wait import eventually
from tidelog.cli.main import main
from tidelog.config import ConfigError
from tidelog.spark.offsets import lag
from tidelog.spark.pipelines import reasons, run_session, runner, state
from tidelog.spark.pipelines.declare import Flow, Pipeline, Setting, SettingValue, Source, Table
from tidelog.spark.pipelines.progress import FlowProgress, line, offsets, together
from tidelog.spark.pipelines.reasons import FlowFailed
from tidelog.spark.pipelines.registry import UnknownPipeline, check_flows, find, find_all
from tidelog.spark.pipelines.run_options import Options, trigger_arguments
from tidelog.spark.pipelines.run_session import SparkDied, patient, spark_alive
from tidelog.spark.pipelines.runner import Running, RunningPipeline
from tidelog.spark.pipelines.settings import read_settings, resolve
from tidelog.spark.pipelines.state import AlreadyRunning, FlowStatus, StateFolder, this_process


def no_flows(settings: Mapping[str, SettingValue]) -> tuple[Flow, ...]:
    return ()


def pipeline(name: str = "mine", *settings: Setting) -> Pipeline:
    return Pipeline(name, "title", "doc", no_flows, settings)


WINDOW = Setting("window_seconds", 60, "", lambda value: int(value) > 0, "a number of seconds above 0")
SHARE = Setting("share", 0.5, "a share")
STRICT = Setting("strict", False, "a switch")
COUNTRY = Setting("country", "", "a text")


def tool(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments])


def test_settings_have_the_type_of_their_default() -> None:
    mine = pipeline("mine", WINDOW, SHARE, STRICT, COUNTRY)
    given = {"window_seconds": " 90 ", "share": "1e-3", "strict": "YES", "country": 7}
    assert resolve([mine], given) == {
        "mine": {"window_seconds": 90, "share": 0.001, "strict": True, "country": "7"}
    }
    assert resolve([mine], {})["mine"] == {
        "window_seconds": 60,
        "share": 0.5,
        "strict": False,
        "country": "",
    }


@pytest.mark.parametrize("value", ["", "x", "1.5", 1.5, True, "0", "-3", None, float("inf"), [1]])
def test_a_value_that_cannot_be_used_is_named_with_what_is_allowed(value: object) -> None:
    with pytest.raises(ConfigError, match=r"window_seconds=.*: expected a number of seconds above 0"):
        resolve([pipeline("mine", WINDOW)], {"window_seconds": value})


@pytest.mark.parametrize("value", ["nan", "inf", "a half"])
def test_numbers_are_finite(value: str) -> None:
    with pytest.raises(ConfigError, match="expected a number"):
        resolve([pipeline("mine", SHARE)], {"share": value})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("window_minutes", 43_201, "1 to 43200"),
        ("accounts", 10**20, "1 to 1000000000"),
        ("ring_hours", 10**6, "1 to 720"),
        ("minute_seconds", 0, "1 to 2592000"),
        ("ring_length", 1, "2 to 20"),
        ("ring_length", 21, "2 to 20"),
    ],
)
def test_windows_and_thresholds_of_detectors_are_what_spark_can_keep(
    name: str, value: int, wanted: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{name}={value}: expected a whole number, {wanted}"):
        resolve(find_all(["device-watch", "invite-watch"]), {name: value})


def test_a_setting_is_for_all_pipelines_that_have_it_or_for_one() -> None:
    both = [pipeline("a", WINDOW), pipeline("b", WINDOW)]
    found = resolve(both, {"window_seconds": 5, "b.window_seconds": "7"})
    assert (found["a"]["window_seconds"], found["b"]["window_seconds"]) == (5, 7)


def test_an_unknown_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"window_second: .*did you mean window_seconds"):
        resolve([pipeline("mine", WINDOW)], {"window_second": 1})
    with pytest.raises(ConfigError, match=r"mine\.windw_seconds: .*did you mean mine\.window_seconds"):
        resolve([pipeline("mine", WINDOW)], {"mine.windw_seconds": 1})
    with pytest.raises(ConfigError, match="nothing to set"):
        resolve([pipeline("mine")], {"window": 1})


def test_settings_come_from_properties_and_toml(tmp_path: Path) -> None:
    (tmp_path / "a.properties").write_text("# mine\nwindow_seconds = 90\na.share: 0.1\n")
    (tmp_path / "a.toml").write_text("window_seconds = 90\n[a]\nshare = 0.1\n")
    assert read_settings(tmp_path / "a.properties") == {"window_seconds": "90", "a.share": "0.1"}
    assert read_settings(tmp_path / "a.toml") == {"window_seconds": 90, "a.share": 0.1}
    (tmp_path / "bad.toml").write_text("window_seconds = \n")
    with pytest.raises(ConfigError, match=r"bad\.toml: not TOML"):
        read_settings(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "none.toml")


MODULE = """
    from tidelog.spark.pipelines.declare import Flow, Pipeline, Source, Table
    import beside_it

    PIPELINE = Pipeline(
        "counts", "Counts.", "Counts what comes.",
        lambda settings: (Flow("all", Source(("orders",)), (Table(beside_it.TABLE),)),),
    )
"""


def test_a_pipeline_is_found_by_its_file_and_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_counts.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "beside_it.py").write_text("TABLE = 'orders'\n")
    package = tmp_path / "pack_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "counts.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = find("./my_counts.py")
    assert (found.name, found.flows({})[0].sinks) == ("counts", (Table("orders"),))
    assert find("my_counts.py") is found
    assert find("pack_of_mine.counts").name == "counts"
    described = tool("describe", "./my_counts.py")
    assert "flow all: orders -> table orders" in described.output, described.output
    with pytest.raises(UnknownPipeline, match="two different pipelines are named counts"):
        find_all(["./my_counts.py", "pack_of_mine.counts"])


def test_what_is_no_pipeline_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "none_here.py").write_text("x = 1\n")
    (tmp_path / "broken_one.py").write_text("import no_such_thing\n")
    with pytest.raises(UnknownPipeline, match="has no PIPELINE"):
        find(str(tmp_path / "none_here.py"))
    with pytest.raises(UnknownPipeline, match=r"broken_one\.py cannot be imported: .*no_such_thing"):
        find(str(tmp_path / "broken_one.py"))
    with pytest.raises(UnknownPipeline, match="there is no file"):
        find(str(tmp_path / "missing.py"))
    with pytest.raises(UnknownPipeline, match=r"there is no module no_such\.module"):
        find("no_such.module")
    with pytest.raises(UnknownPipeline, match="did you mean earnings"):
        find("earning")


def test_a_wrong_declaration_is_told_before_anything_starts() -> None:
    flow = Flow("all", Source(("orders",)), (Table("orders"),))
    for flows, words in (
        ((), "declares no flow"),
        ((flow, flow), "two flows named all"),
        ((Flow("all", Source(("orders",)), ()),), "has no sink"),
        ((Flow("all", Source(()), (Table("a"),)),), "reads no topic"),
        ((Flow("a/b", Source(("orders",)), (Table("a"),)),), "cannot be the name"),
        ((Flow("all", Source(("orders",)), (Table("a"), Table("a"))),), "two sinks named a"),
    ):
        with pytest.raises(UnknownPipeline, match=words):
            check_flows(pipeline(), flows)


def test_triggers() -> None:
    assert trigger_arguments("10 seconds") == {"processingTime": "10 seconds"}
    assert trigger_arguments("500ms") == {"processingTime": "500 milliseconds"}
    assert trigger_arguments("1 Minute") == {"processingTime": "1 minute"}
    assert trigger_arguments("available-now") == {"availableNow": True}
    assert trigger_arguments("once") == {"once": True}
    for wrong in ("", "10", "soon", "10 parsecs", "-1 seconds", "ten seconds"):
        with pytest.raises(ConfigError, match="expected available-now"):
            trigger_arguments(wrong)


def test_a_pipeline_runs_once_on_a_data_folder(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path))
    first = folder.claim("mine")
    folder.write(this_process("mine"))
    with pytest.raises(AlreadyRunning, match=rf"mine already runs .*process {os.getpid()}.*stop mine"):
        folder.claim("mine")
    folder.claim("other").close()
    assert folder.runs("mine")
    first.close()
    assert not folder.runs("mine")
    folder.claim("mine").close()


HOLDER = """
import sys, time
from tidelog.spark.pipelines.state import StateFolder, this_process
folder = StateFolder(sys.argv[1])
claim = folder.claim("mine")
status = this_process("mine")
status.state = "running"
folder.write(status)
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_process_leaves_no_lease_and_is_seen_to_be_gone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            running = tool("status", "--data", str(tmp_path))
            assert running.exit_code == 0
            assert f"mine: running, process {process.pid}" in running.output
        finally:
            process.kill()
    # The number in the file may be anybody's by now: only the lease counts.
    folder = StateFolder(str(tmp_path))
    status = folder.read("mine")
    assert status is not None
    status.pid, status.state = os.getpid(), "running"
    folder.write(status)
    killed = tool("status", "--data", str(tmp_path))
    assert killed.exit_code == 1
    assert "mine: killed" in killed.output
    folder.claim("mine").close()


def test_a_status_that_another_version_wrote_is_passed_over(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path))
    for text in ("", "{", "[]", '{"flows": {}}', '{"pipeline": "mine", "flows": {"a": {"colour": 1}}}'):
        folder.files.write("mine.json", text)
        assert folder.read("mine") is None


def test_where_the_log_of_spark_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state.status_folder("here") == Path("here/status")
    assert state.status_folder("file:///data/x") == Path("/data/x/status")
    away = state.status_folder("hdfs://names/x")
    assert away.parent == tmp_path / "tidelog" / "pipelines"
    assert away == state.status_folder("hdfs://names/x/")
    assert away != state.status_folder("hdfs://names/y")


def test_stop_waits_for_the_end_and_says_when_it_does_not_come(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path))
    claim = folder.claim("mine")
    folder.write(this_process("mine"))
    late = tool("stop", "mine", "--data", str(tmp_path), "--timeout", "0.2")
    assert late.exit_code == 1
    assert "still running" in late.output
    assert folder.stop_requested("mine")
    claim.close()
    assert tool("stop", "mine", "--data", str(tmp_path)).output.startswith("mine does not run")
    folder.claim("mine").close()
    assert not folder.stop_requested("mine"), "the request was for the run before"


def test_lag_is_what_lies_between_a_batch_and_the_end_of_the_log() -> None:
    behind = lag({"a": {"0": 7, "1": 5}}, {"a": {"0": 10, "1": 5}, "b": {"0": 3}})
    assert behind == {("a", 0): 3, ("a", 1): 0, ("b", 0): 3}
    assert offsets('{"a": {"0": 1}}') == {"a": {"0": 1}}
    assert offsets(None) is None
    assert offsets("12") is None


def test_the_line_of_progress() -> None:
    flow = FlowStatus("running", 7, 100, 12_000.4, 420, 340, 0, 1.0)
    assert line([("earnings", flow)]) == "earnings: 12,000 rows/s, lag 340, batch 7 in 0.4 s"
    both = together([flow, FlowStatus("running", 9, 50, 10, 900, None, 1, 2.0)])
    assert (both.rows, both.lag, both.batch, both.batch_ms) == (150, 340, 9, 900)
    assert line([("a", FlowStatus())]) == "a: starting"


def test_the_reason_of_a_failure_is_the_last_error_in_the_stack() -> None:
    text = (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in call\n'
        "pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the worker:\n"
        "Traceback (most recent call last):\n"
        "tidelog.errors.BrokerNotAvailable: cannot connect to 127.0.0.1:9092\n"
        "\n=== Streaming Query ===\nIdentifier: mine/all [id = 1]\nCurrent State: ACTIVE\n"
    )
    failure = reasons.flow_failed("mine", "all", RuntimeError(text))
    assert str(failure) == (
        "flow all of pipeline mine failed: cannot connect to 127.0.0.1:9092. Check that the broker runs and "
        "can be reached, and start the pipeline again: it continues where it stopped"
    )
    assert reasons.advice("Python worker failed to connect back").startswith("This machine is overloaded")
    assert reasons.reason("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012") == "Division by zero"
    assert reasons.reason("pack.KeyError: 'x'") == "KeyError: 'x'"
    assert reasons.reason("") == "Spark gave no reason"


@pytest.mark.parametrize(
    ("master", "used"),
    [
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local", "local[1,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[1,1,1024]", "local-cluster[1,1,1024]"),
        ("spark://local:7077", "spark://local:7077"),
    ],
)
def test_a_task_on_this_machine_is_tried_again_as_on_a_cluster(master: str, used: str) -> None:
    assert patient(master) == used


def test_a_java_process_that_outlived_its_driver_is_not_forgotten_by_the_first_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_session, "OLD_JVM_SECONDS", 0.0)
    for function in ("check_spark", "prepare_topics", "new_session"):  # nothing of it would run
        monkeypatch.setattr(runner, function, lambda *_, **__: None)
    flow = Flow("all", Source(("topic",)), (Table("words"),))
    mine = Pipeline("mine", "title", "doc", lambda settings: (flow,))
    left = subprocess.Popen(["java", "600"], executable="/bin/sleep")
    try:
        eventually(lambda: state.process_is_java(left.pid), "the process has its name", 30)
        status = this_process("mine")
        status.state, status.jvm_pid = state.RUNNING, left.pid
        StateFolder(str(tmp_path)).write(status)
        for _ in range(2):
            with pytest.raises(AlreadyRunning, match=f"the Java process {left.pid} of the last run of mine"):
                runner.start([mine], Options(data=str(tmp_path)))
    finally:
        left.kill()
        left.wait()


class FailsMeanwhile:
    """A query that fails just after somebody saw that it runs."""

    def __init__(self) -> None:
        self.flow = Flow("all", Source(("topic",)), (Table("words"),))
        self.progress = FlowProgress()
        self._looks = 0

    @property
    def ended(self) -> bool:
        self._looks += 1
        return self._looks > 1

    def look(self) -> None: ...
    def close_gate(self) -> None: ...
    def stop_now(self) -> None: ...

    def stopped_between_batches(self) -> bool:
        return True

    def failure(self) -> Exception:
        return ValueError("the shelf is full")

    cut_off = None


def test_a_flow_that_fails_in_the_midst_of_a_turn_is_not_taken_for_stopped(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path))
    mine = Pipeline("mine", "title", "doc", lambda settings: ())
    each = RunningPipeline(mine, {}, (), folder.claim("mine"), this_process("mine"))
    each.queries = [FailsMeanwhile()]  # type: ignore[list-item]
    with Running([each], Options(data=str(tmp_path)), folder) as running:
        with pytest.raises(FlowFailed, match="flow all of pipeline mine failed: the shelf is full"):
            running.wait()
        assert each.status.state == state.FAILED


def test_an_end_of_java_is_told_as_such(tmp_path: Path) -> None:
    with (
        pytest.raises(SparkDied, match=r"Java process has ended: .*status/spark\.log\. Start"),
        spark_alive(str(tmp_path)),
    ):
        raise ConnectionRefusedError("[Errno 111] Connection refused")


def test_the_tool_lists_and_describes(tmp_path: Path) -> None:
    listed = tool("list", "--output", "json")
    assert [each["name"] for each in json.loads(listed.output)] == [
        "collect",
        "device-watch",
        "invite-watch",
        "region",
        "earnings",
    ]
    assert "earnings" in tool("list").output
    described = json.loads(tool("describe", "earnings", "--output", "json").output)
    assert [flow["topics"] for flow in described["flows"]] == [["ml_obtain_credit_log"], ["ml_task_log"]]
    assert "largest_amount = " in tool("describe", "earnings").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["earning"], "did you mean earnings"),
        (["earnings", "--trigger", "soon"], "trigger=soon: expected"),
        (["earnings", "--set", "largest_amount"], "expected name=value"),
        (["earnings", "--set", "largest_amonut=3"], "did you mean largest_amount"),
        (["earnings", "--set", "largest_amount=much"], "expected a whole number of units"),
        (["earnings", "--config", "nowhere.toml"], "cannot be read"),
        (["region", "--set", "default_country=ZZ"], "expected the two letters of a country"),
    ],
)
def test_a_wrong_call_ends_with_one_line_and_1(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = tool("run", *arguments, "--data", str(tmp_path / "data"))
    assert result.exit_code == 1
    assert words in result.output
    assert result.output.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = tool("run", "earnings", "--data", str(tmp_path / "data"))
    assert result.exit_code == 1
    assert result.output.startswith("tidelog: Spark needs Java 17 or newer")
    assert result.output.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = tool("run", "earnings", "--data", str(tmp_path / "data"))
    assert result.exit_code == 1
    assert "pip install 'tidelog[spark]'" in result.output
    assert result.output.count("\n") == 1


def test_listing_needs_neither_java_nor_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from click.testing import CliRunner; from tidelog.cli.main import main\n"
        "result = CliRunner().invoke(main, ['pipeline', 'list']); print(result.output)\n"
        "sys.exit(result.exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
