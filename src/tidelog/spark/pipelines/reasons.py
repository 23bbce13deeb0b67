"""The reason why a flow failed, from the text of Spark's exception, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable

_TAIL = "\n=== Streaming Query ==="
_PYTHON_ERROR = re.compile(r"^((?:\w+\.)*[A-Z]\w*): (\S.*)$", re.MULTILINE)
_SPARK_WORDS = re.compile(r"^\[[A-Z_.0-9]+\] (.+?)(?: SQLSTATE: \w+[;.]?)?$", re.DOTALL)
# Class names in front of a colon that say nothing about the error.
_NOISE = ("PythonException", "StreamingQueryException", "Py4JException", "Py4JJavaError", "SparkException")


class FlowFailed(RuntimeError):
    """A flow ended with an error. The message has the flow, the reason, and what to do."""

    def __init__(self, pipeline: str, flow: str, reason: str, advice: str) -> None:
        super().__init__(f"flow {flow} of pipeline {pipeline} failed: {reason}. {advice}")
        self.pipeline = pipeline
        self.flow = flow
        self.reason = reason


def flow_failed(
    pipeline: str, flow: str, error: Exception, plain: Callable[[str], str] = lambda text: text
) -> FlowFailed:
    """`plain` removes from the reason what must not be shown."""
    why = plain(reason(str(error)))
    failure = FlowFailed(pipeline, flow, why, advice(why))
    failure.__cause__ = error
    return failure


def reason(text: str) -> str:
    """The last Python error in a stack trace, or the error of Spark itself."""
    text = text.partition(_TAIL)[0].strip()
    found = [
        (match.group(1).rpartition(".")[2], match.group(2))
        for match in _PYTHON_ERROR.finditer(text)
        if match.group(1).rpartition(".")[2] not in _NOISE
    ]
    if not found:
        return _plain(text.partition("\n")[0]) or "Spark gave no reason"
    name, words = found[-1]
    # The message of these errors is just a name; other messages explain themselves.
    return (
        f"{name}: {_plain(words)}" if name in ("KeyError", "AttributeError", "TypeError") else _plain(words)
    )


def _plain(text: str) -> str:
    match = _SPARK_WORDS.match(text.strip())
    return (match.group(1) if match else text).strip().rstrip(".;")


_ADVICE = (
    (
        ("python worker failed to connect back",),
        "This machine is overloaded: a Python process did not start within the ten seconds of Spark. "
        "Start the pipeline again when the machine is less busy: it continues where it stopped",
    ),
    (
        ("data loss", "dataloss", "no longer", "out of range"),
        "Records were deleted before they were read: raise the topic's retention; to start over with the "
        "remaining records, remove the flow's checkpoint and its tables",
    ),
    (
        ("connect", "reach", "timed out", "not available"),
        "Check that the broker runs and can be reached, and start the pipeline again: it continues where it "
        "stopped",
    ),
    (("no space left",), "Make room, and start the pipeline again: it continues where it stopped"),
    (
        ("memory", "heap space"),
        "Give it more memory (--spark-conf spark.driver.memory=4g) or smaller micro-batches "
        "(--max-offsets-per-trigger 100000)",
    ),
)


def advice(why: str) -> str:
    for words, text in _ADVICE:
        if any(word in why.lower() for word in words):
            return text
    return "Nothing of the micro-batch is lost: fix the cause and start the pipeline again"
