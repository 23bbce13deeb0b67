"""Why a flow failed, for people: out of an exception of Spark the one sentence that matters."""

from __future__ import annotations

import re

_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Failed|[A-Z]\w+)): (.+)$", re.MULTILINE)
_SPARK_CLASS = re.compile(r"^\[([A-Z_.]+)\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_NOISE = ("SparkException", "PythonException", "StreamingQueryException", "Py4JJavaError", "Traceback")


class FlowFailed(RuntimeError):
    """A flow ended by an error; the text says which, why, and what to do."""

    def __init__(self, pipeline: str, flow: str, reason: str, advice: str) -> None:
        super().__init__(f"flow {flow} of pipeline {pipeline} failed: {reason}. {advice}")
        self.pipeline = pipeline
        self.flow = flow
        self.reason = reason


def flow_failed(pipeline: str, flow: str, error: Exception) -> FlowFailed:
    why = reason(str(error))
    return FlowFailed(pipeline, flow, why.rstrip("."), advice(why))


def reason(text: str) -> str:
    """The last error of Python in a stack of them, or what Spark itself complains of."""
    found = [
        match.group(2)
        for match in _PYTHON_ERROR.finditer(text)
        if match.group(1) not in _NOISE
        and not match.group(0).startswith(("Caused by", "\tat", "org.", "java."))
    ]
    if found:
        return _spark_words(found[-1])
    return _spark_words(text.strip().partition("\n")[0]) or "Spark gave no reason"


def _spark_words(text: str) -> str:
    match = _SPARK_CLASS.match(text)
    return (match.group(2) if match else text).strip()


_ADVICE = (
    (
        ("failOnDataLoss", "no longer", "out of range", "gone"),
        "Records were deleted before they were read: raise the topic's retention, or remove the flow's "
        "checkpoint and its tables to begin anew with what is there",
    ),
    (
        ("connect", "Connection", "broker", "timed out", "not available"),
        "See that the broker runs and can be reached, then start the pipeline again: it goes on where it was",
    ),
    (("No space left", "disk"), "Make room, then start the pipeline again: it goes on where it was"),
    (
        ("memory", "heap"),
        "Give it more memory (--spark-conf spark.driver.memory=4g) or smaller micro-batches "
        "(--max-offsets-per-trigger)",
    ),
)


def advice(why: str) -> str:
    for words, told in _ADVICE:
        if any(word.lower() in why.lower() for word in words):
            return told
    return "Nothing of the failed micro-batch is lost: once the cause is mended, start the pipeline again"
