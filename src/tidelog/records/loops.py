"""The hot loops of this package: compiled if the extension was built, otherwise in plain Python.

TIDELOG_PURE=1 in the environment selects plain Python. The results are the same.
"""

from __future__ import annotations

import os

from tidelog.records._pure_cleaner import SLOT_SIZE, Offsets
from tidelog.records._pure_client import EncodedHeaders, RecordMetadata, encode_headers
from tidelog.records._pure_copy import COPIED_FIELDS
from tidelog.records._pure_producer import (
    LAST_SEQUENCE,
    NO_PRODUCER_EPOCH,
    REMEMBERED_BATCHES,
    BatchMetadata,
)

try:
    if os.environ.get("TIDELOG_PURE") == "1":
        raise ImportError("plain Python was asked for")
    from tidelog.records._speed import (
        ArrowColumn,
        ArrowColumns,
        BatchBuffer,
        BatchRules,
        Block,
        BufferPool,
        ColumnSink,
        ConsumerRecord,
        OpenBatches,
        ProducerEntry,
        RecordFuture,
        RecordReader,
        RowSink,
        copied_batches,
        copied_run,
        crc,
        encode_records,
        encode_varint,
        filter_batches,
        first_bad_crc,
        index_batches,
        java_string_hash,
        lay_out,
        make_records,
        map_batches,
        map_records,
        murmur2,
        note_copied,
        one_fetch_request,
        one_record_batch,
        parse_one_batch,
        parse_one_fetch,
        parse_one_fetched,
        parse_produce,
        patch_header,
        produce_response,
        read_varint,
        sign_batch,
        siphash128,
        walk,
        walk_columns,
    )

    COMPILED = True
except ImportError:
    from tidelog.records._pure import (
        crc,
        encode_records,
        encode_varint,
        java_string_hash,
        make_records,
        murmur2,
        one_record_batch,
        patch_header,
        read_varint,
        walk,
        walk_columns,
    )
    from tidelog.records._pure_check import BatchRules  # type: ignore[assignment]
    from tidelog.records._pure_cleaner import (
        filter_batches,
        index_batches,
        map_batches,
        map_records,
        siphash128,
    )
    from tidelog.records._pure_client import (  # type: ignore[assignment]
        ArrowColumn,
        ArrowColumns,
        BatchBuffer,
        BufferPool,
        OpenBatches,
        RecordFuture,
        sign_batch,
    )
    from tidelog.records._pure_copy import (  # type: ignore[assignment]
        copied_batches,
        copied_run,
        first_bad_crc,
        note_copied,
    )
    from tidelog.records._pure_fetch import (  # type: ignore[assignment]
        Block,
        ColumnSink,
        ConsumerRecord,
        RecordReader,
    )
    from tidelog.records._pure_fetch_request import parse_one_fetch
    from tidelog.records._pure_follower_fetch import one_fetch_request, parse_one_fetched
    from tidelog.records._pure_produce import parse_one_batch, parse_produce, produce_response
    from tidelog.records._pure_producer import ProducerEntry  # type: ignore[assignment]
    from tidelog.records._pure_rows import RowSink  # type: ignore[assignment]
    from tidelog.records._pure_run import lay_out  # type: ignore[assignment]

    COMPILED = False

# Types of both forms. All other names of `__all__` have a compiled and a plain form.
SHARED = frozenset(
    (
        *(
            "BatchMetadata",
            "COMPILED",
            "COPIED_FIELDS",
            "EncodedHeaders",
            "LAST_SEQUENCE",
            "NO_PRODUCER_EPOCH",
            "Offsets",
        ),
        *("REMEMBERED_BATCHES", "RecordMetadata", "SHARED", "SLOT_SIZE", "encode_headers"),
    )
)

__all__ = [
    "COMPILED",
    "COPIED_FIELDS",
    "LAST_SEQUENCE",
    "NO_PRODUCER_EPOCH",
    "REMEMBERED_BATCHES",
    "SHARED",
    "SLOT_SIZE",
    "ArrowColumn",
    "ArrowColumns",
    "BatchBuffer",
    "BatchMetadata",
    "BatchRules",
    "Block",
    "BufferPool",
    "ColumnSink",
    "ConsumerRecord",
    "EncodedHeaders",
    "Offsets",
    "OpenBatches",
    "ProducerEntry",
    "RecordFuture",
    "RecordMetadata",
    "RecordReader",
    "RowSink",
    "copied_batches",
    "copied_run",
    "crc",
    "encode_headers",
    "encode_records",
    "encode_varint",
    "filter_batches",
    "first_bad_crc",
    "index_batches",
    "java_string_hash",
    "lay_out",
    "make_records",
    "map_batches",
    "map_records",
    "murmur2",
    "note_copied",
    "one_fetch_request",
    "one_record_batch",
    "parse_one_batch",
    "parse_one_fetch",
    "parse_one_fetched",
    "parse_produce",
    "patch_header",
    "produce_response",
    "read_varint",
    "sign_batch",
    "siphash128",
    "walk",
    "walk_columns",
]
