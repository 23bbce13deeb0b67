"""JSON values into columns: compiled if the extension was built, otherwise in plain Python.

TIDELOG_PURE=1 in the environment selects plain Python. The results are the same.
"""

from __future__ import annotations

import os

from tidelog.records._pure_json import (
    ARRAY,
    BAD_CONTENT,
    BINARY,
    BOOL,
    DATE,
    DECIMAL,
    DOUBLE,
    FLOAT,
    INT8,
    INT16,
    INT32,
    INT64,
    IS_NULL,
    LOCAL_TIMESTAMP,
    MAP,
    MAX_DEPTH,
    MISSING,
    NO_OBJECT,
    NO_VALUE,
    OUT_OF_RANGE,
    STRING,
    STRUCT,
    SYNTAX,
    TIMESTAMP,
    TOO_DEEP,
    TWICE,
    WRONG_TYPE,
    Column,
    Field,
    RowError,
)

try:
    if os.environ.get("TIDELOG_PURE") == "1":
        raise ImportError("plain Python was asked for")
    from tidelog.records._json import JsonReader
except ImportError:
    from tidelog.records._pure_json import JsonReader  # type: ignore[assignment]

__all__ = [
    "ARRAY",
    "BAD_CONTENT",
    "BINARY",
    "BOOL",
    "DATE",
    "DECIMAL",
    "DOUBLE",
    "FLOAT",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "IS_NULL",
    "LOCAL_TIMESTAMP",
    "MAP",
    "MAX_DEPTH",
    "MISSING",
    "NO_OBJECT",
    "NO_VALUE",
    "OUT_OF_RANGE",
    "STRING",
    "STRUCT",
    "SYNTAX",
    "TIMESTAMP",
    "TOO_DEEP",
    "TWICE",
    "WRONG_TYPE",
    "Column",
    "Field",
    "JsonReader",
    "RowError",
]
