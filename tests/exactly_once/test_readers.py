"""A reader that can go no further says why in the history. The checker calls that a problem."""

from __future__ import annotations

from pathlib import Path

from tests.exactly_once.brokers import running_broker
from tests.exactly_once.history import Diary, History
from tests.exactly_once.readers import ConfluentReader, KafkaPythonReader
from tests.support.contents import produce
from tidelog import Admin, NewTopic
from tidelog.simulation.checks.transaction_history import COMMITTED


def test_a_reader_whose_offset_is_gone_says_so(tmp_path: Path) -> None:
    history, diary = History(tmp_path / "history"), Diary(tmp_path / "history")
    with running_broker(tmp_path / "broker") as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])
            produce(broker.bootstrap, {("t", 0): [b"one", b"two"]})
            admin.delete_records({("t", 0): 1})
        reader = ConfluentReader("reader", broker.bootstrap, [("t", 0)], COMMITTED, diary)
        reader.start()
        history.wait_for(lambda line: line.what == "failed", "the reader fails")
        reader.close()
    assert "it reads t no further" in history.lines[-1].detail


def test_a_reader_that_waits_for_its_offset_in_vain_says_so_in_the_end(tmp_path: Path) -> None:
    history, diary = History(tmp_path / "history"), Diary(tmp_path / "history")
    with running_broker(tmp_path / "broker") as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])
            produce(broker.bootstrap, {("t", 0): [b"one", b"two"]})
            admin.delete_records({("t", 0): 1})
        reader = KafkaPythonReader("reader", broker.bootstrap, [("t", 0)], COMMITTED, diary)
        reader.start()
        reader.drain({("t", 0): 1}, timeout=2.0)
        reader.close()
    history.wait_for(lambda line: line.what == "failed", "the reader fails")
    assert "it got no further than {('t', 0): 0}" in history.lines[-1].detail
