"""What docs/pipeline.md says of the pipelines is what they are, and the blocks of code with Spark run."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import PROJECT, Block, blocks
from tests.spark.hands import Hands
from tidelog.spark import lag
from tidelog.spark.pipelines.declare import Table, Topic
from tidelog.spark.pipelines.registry import BUILT_IN, find
from tidelog.spark.pipelines.settings import resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "pipeline.md").read_text()


def settings_table() -> str:
    """The table of settings as the page has it."""
    lines = ["| pipeline | setting | default | meaning |", "|---|---|---|---|"]
    for name in BUILT_IN:
        pipeline = find(name)
        for setting in pipeline.settings:
            default = str(setting.default)
            shown = default.lower() if isinstance(setting.default, bool) else default
            allowed = f" ({setting.allowed})" if setting.allowed else ""
            meaning = f"{setting.doc}{allowed}".replace("|", r"\|")
            lines.append(f"| {name} | `{setting.name}` | {shown} | {meaning} |")
    return "\n".join(lines)


def test_every_setting_is_there_with_its_default() -> None:
    written = re.search(r"<!-- settings -->\n(.*?)\n<!-- /settings -->", PAGE, re.DOTALL)
    assert written is not None
    assert written[1] == settings_table(), f"the table should be:\n{settings_table()}"


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_the_tables_and_topics_of_every_pipeline_are_named(name: str) -> None:
    row = re.search(rf"^\| `{name}` \|.*$", PAGE, re.MULTILINE)
    assert row is not None
    pipeline = find(name)
    for flow in pipeline.flows(resolve([pipeline], {})[name]):
        for sink in flow.sinks:
            if isinstance(sink, Table | Topic):
                assert f"`{sink.name}`" in row[0], sink.name


class Code:
    """Runs blocks of a page in one namespace, with the paths in them in a temporary folder."""

    def __init__(self, page: str, hands: Hands, folder: Path, names: Mapping[str, object]) -> None:
        self.blocks = [block for block in blocks(PROJECT / page) if block.language == "python"]
        self.names = dict(names)
        self.places = {"(?:localhost|127.0.0.1):9092": hands.bootstrap, r'"(?=checkpoints/)': f'"{folder}/'}

    def run(self, words: str) -> None:
        """Run the one block that has these words."""
        [block] = [block for block in self.blocks if words in block.code]
        self.blocks.remove(block)
        code = block.code
        for old, new in self.places.items():
            code = re.sub(old, new, code)
        exec(compile("\n" * block.line + code, block.page, "exec"), self.names)


def needs_more(block: Block) -> bool:
    """Whether a block needs more than these tests have."""
    return block.why_not_run == "needs a secured cluster"  # test_secured.py has one


def drain(spark: SparkSession) -> None:
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()


def test_the_code_of_the_page_about_spark_runs(
    spark: SparkSession, hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.spark.session.session", lambda app: spark)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    listeners: list[lag.GroupListener] = []
    publish = lag.publish
    monkeypatch.setattr(lag, "publish", lambda *given: listeners.append(publish(*given)))
    hands.topic(name="credits")
    hands.produce(hands.topic(name="orders"), ["one tea"])
    code = Code("docs/spark.md", hands, tmp_path, {})
    code.run("spark = session(")
    drain(spark)
    code.run("credits = (")
    code.run("PYSPARK_PYTHON")
    code.run("register(spark)")
    code.names["frame"] = spark.createDataFrame([("u1", 3)], ["user_id", "amount"])
    code.run("to_json(struct(*))")
    assert hands.values("users") == ['{"user_id":"u1","amount":3}']
    code.names["rows"] = code.names["orders"]
    code.run(".option(\"exactlyOnce\", \"true\")")
    drain(spark)
    assert hands.values("totals") == ["one tea"]
    code.run("publish(spark")
    for listener in listeners:
        spark.streams.removeListener(listener)
        listener.close()
    assert (len(listeners), [block for block in code.blocks if not needs_more(block)]) == (1, [])


def test_the_code_of_the_first_page_runs_with_spark(
    spark: SparkSession, hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.spark.session.session", lambda app: spark)
    topic = hands.topic()
    code = Code("README.md", hands, tmp_path, {})
    code.places['"orders"'] = f'"{topic}"'
    code.run("tidelog.spark.session")
    assert hands.values(topic) == ["a coffee", "two teas"]
