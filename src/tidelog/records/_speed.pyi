from array import array
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from tidelog.records._pure import Buffer, Columns, Headers, RecordFields
from tidelog.records._pure_check import CheckedBatch, Look
from tidelog.records._pure_cleaner import IndexEntry, Offsets
from tidelog.records._pure_client import EncodedHeaders, RecordMetadata
from tidelog.records._pure_copy import CopiedEnd, Limits, Noted
from tidelog.records._pure_fetch import Aborted
from tidelog.records._pure_fetch_request import OneFetch, WantedPartition
from tidelog.records._pure_follower_fetch import OneFetched
from tidelog.records._pure_produce import ProduceBody
from tidelog.records._pure_producer import BatchMetadata
from tidelog.records._pure_run import End, Run

R = TypeVar("R")

def read_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]: ...
def encode_varint(value: int) -> bytes: ...
def crc(buf: Buffer, start: int, end: int) -> int: ...
def patch_header(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None: ...
def walk(
    buf: Buffer, start: int, end: int, count: int, base_timestamp: int, need_key: bool, low: int, high: int
) -> tuple[int, int, int, int]: ...

class ProducerEntry:
    producer_id: int
    coordinator_epoch: int
    last_timestamp: int
    transaction_start: int | None
    def __init__(self, producer_id: int, epoch: int = -1) -> None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def batches(self) -> tuple[BatchMetadata, ...]: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    def take_epoch(self, epoch: int) -> None: ...
    def copy(self) -> ProducerEntry: ...
    def end_transaction(self, epoch: int, coordinator_epoch: int, timestamp: int) -> int | None: ...
    def awaits(self, batch: CheckedBatch) -> bool: ...
    def awaits_first(self, batch: CheckedBatch) -> bool: ...
    def append(self, batch: CheckedBatch, last_offset: int) -> bytes: ...
    def note(self, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None: ...
    def state(self) -> bytes: ...
    def restore(self, state: bytes) -> None: ...
    def find_duplicate(self, epoch: int, first_sequence: int, offset_delta: int) -> BatchMetadata | None: ...

class BatchRules:
    def __init__(
        self,
        max_bytes: int,
        from_client: bool,
        allow_zstd: bool,
        need_key: bool,
        before_max_ms: int,
        after_max_ms: int,
        log_append_time: bool,
        keeps_codec: bool,
    ) -> None: ...
    def bounds(self, now_ms: int) -> tuple[int, int]: ...
    def look(self, buf: Buffer, now_ms: int) -> CheckedBatch | Look: ...

def walk_columns(buf: Buffer, start: int, end: int, count: int) -> Columns: ...
def make_records(
    make: Callable[[int, int, bytes | None, bytes | None, Headers], R],
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[R]: ...
def encode_records(
    records: Iterable[RecordFields], base_offset: int, base_timestamp: int
) -> tuple[bytes, int, int, int]: ...
def one_record_batch(key: bytes, value: bytes | None, timestamp: int) -> bytearray: ...
def murmur2(data: Buffer) -> int: ...
def java_string_hash(text: str) -> int: ...
def lay_out(
    data: bytearray,
    at: int,
    batches: list[CheckedBatch],
    first: int,
    stop: int,
    base_offset: int,
    leader_epoch: int,
    end: End,
    entries: dict[int, ProducerEntry],
    verifications: Mapping[int, object],
) -> Run: ...
def copied_batches(buf: Buffer) -> tuple[int, array[int], int]: ...
def first_bad_crc(buf: Buffer) -> int: ...
def copied_run(columns: array[int], first: int, limits: Limits) -> tuple[int, int]: ...
def note_copied(
    columns: array[int],
    first: int,
    stop: int,
    end: CopiedEnd,
    latest_epoch: int,
    entries: dict[int, ProducerEntry],
) -> Noted: ...
def parse_produce(buf: Buffer, pos: int, version: int) -> ProduceBody: ...
def parse_one_batch(
    buf: Buffer, pos: int, version: int
) -> tuple[str | None, int, str | bytes, int, int, int] | None: ...
def parse_one_fetch(buf: Buffer, pos: int, version: int) -> OneFetch | None: ...
def one_fetch_request(
    version: int,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int,
    session_epoch: int,
    wanted: WantedPartition | None,
) -> bytes: ...
def parse_one_fetched(buf: Buffer, pos: int, version: int) -> OneFetched | None: ...
def produce_response(
    version: int,
    correlation_id: int,
    topic: str | bytes,
    partition: int,
    error_code: int,
    base_offset: int,
    log_append_time: int,
    log_start_offset: int,
) -> bytes: ...
def siphash128(key: Buffer, data: Buffer) -> bytes: ...
def map_records(
    table: bytearray | memoryview,
    key: Buffer,
    used: int,
    limit: int,
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    from_offset: int,
) -> tuple[int, int, int, int]: ...
def map_batches(
    table: bytearray | memoryview,
    key: Buffer,
    used: int,
    limit: int,
    buf: Buffer,
    start: int,
    end: int,
    from_offset: int,
) -> tuple[int, int, int, int, int]: ...
def filter_batches(
    table: Buffer,
    key: Buffer,
    buf: Buffer,
    start: int,
    end: int,
    out: bytearray | memoryview,
    out_at: int,
    latest: int,
    now: int,
    horizon: int,
    retained: Offsets,
    single: bool,
    retain: bool,
) -> tuple[int, int, int, int, int]: ...
def index_batches(
    buf: Buffer,
    start: int,
    end: int,
    position: int,
    interval: int,
    since: int,
    max_timestamp: int,
    offset_of_max: int,
) -> tuple[list[IndexEntry], int, int, int]: ...

class FutureSource(Protocol):
    def future_done(self, future: RecordFuture) -> bool: ...
    def future_result(self, future: RecordFuture, timeout: float | None) -> RecordMetadata: ...
    def future_exception(self, future: RecordFuture, timeout: float | None) -> BaseException | None: ...
    def future_callback(self, future: RecordFuture, function: Callable[[RecordFuture], object]) -> None: ...
    def future_await(self, future: RecordFuture) -> Generator[object, None, RecordMetadata]: ...

class RecordFuture:
    batch: FutureSource
    index: int
    timestamp: int
    key_size: int
    value_size: int
    def __init__(
        self, batch: FutureSource, index: int, timestamp: int, key_size: int, value_size: int
    ) -> None: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...
    def running(self) -> bool: ...
    def result(self, timeout: float | None = None) -> RecordMetadata: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def add_done_callback(self, function: Callable[[RecordFuture], object]) -> None: ...
    def __await__(self) -> Generator[object, None, RecordMetadata]: ...

class BufferPool:
    size: int
    held: int
    def __init__(self, size: int) -> None: ...

class BatchBuffer:
    size: int
    limit: int
    count: int
    base_timestamp: int
    max_timestamp: int
    sealed: bool
    full: bool
    def __init__(self, limit: int, *args: object) -> None: ...
    def append_value(self, value: bytes | None) -> RecordFuture | None: ...
    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: EncodedHeaders
    ) -> RecordFuture | None: ...
    def append_rows(
        self, columns: ArrowColumns, rows: array[int] | None, start: int, stop: int, timestamp: int
    ) -> int: ...
    def last_future(self) -> RecordFuture: ...
    def seal(self) -> None: ...
    def reuse(self, pool: BufferPool) -> None: ...
    def release(self) -> None: ...
    def bytes_view(self) -> memoryview: ...

class OpenBatches:
    batches: list[BatchBuffer | None]
    def __init__(self, partitions: int) -> None: ...
    def append(self, key: bytes, value: bytes) -> RecordFuture | None: ...

class ArrowColumn:
    def __init__(
        self,
        offsets: Buffer | None,
        data: Buffer | None,
        validity: Buffer | None,
        first: int,
        rows: int,
        wide: bool,
    ) -> None: ...

class ArrowColumns:
    rows: int
    has_keys: bool
    def largest(self) -> int: ...
    def row(self, number: int) -> tuple[bytes | None, bytes | None]: ...
    def __init__(
        self,
        key: ArrowColumn,
        value: ArrowColumn,
        times: Buffer | None,
        first_time: int,
        headers: EncodedHeaders,
        row_headers: ArrowColumn | None = None,
    ) -> None: ...
    def rows_by_partition(self, partitions: int) -> list[array[int]]: ...

def sign_batch(
    buf: bytearray | memoryview,
    attributes: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None: ...

K_co = TypeVar("K_co", covariant=True, default=bytes)
V_co = TypeVar("V_co", covariant=True, default=bytes)

class ConsumerRecord(Generic[K_co, V_co]):
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    leader_epoch: int
    serialized_key_size: int
    serialized_value_size: int
    headers: Headers
    @property
    def key(self) -> K_co | None: ...
    @property
    def value(self) -> V_co | None: ...
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int = -1,
        key: K_co | None = None,
        value: V_co | None = None,
        headers: Headers = (),
        timestamp_type: int = 0,
        leader_epoch: int = -1,
        serialized_key_size: int = -1,
        serialized_value_size: int = -1,
    ) -> None: ...
    def replace(self, key: object, value: object) -> None: ...

class RecordReader:
    topic: str
    partition: int
    position: int
    leader_epoch: int
    next_fetch: int
    size: int
    done: bool
    def __init__(
        self,
        buf: Buffer,
        topic: str,
        partition: int,
        position: int,
        check_crcs: bool,
        aborted: Aborted | None,
    ) -> None: ...
    def copy(self) -> RecordReader: ...
    def take(self, limit: int) -> list[ConsumerRecord[Any, Any]]: ...
    def take_columns(self, sink: ColumnSink, limit: int) -> int: ...

class ColumnSink:
    rows: int
    topics: list[str]
    null_keys: int
    null_values: int
    null_timestamps: int
    null_header_values: int
    header_rows: int
    def has_room(self, size: int) -> bool: ...
    def expect(self, size: int) -> None: ...
    def buffers(self) -> dict[str, Buffer]: ...

class Block:
    def __init__(self, size: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int) -> memoryview: ...

class RowSink:
    rows: int
    ended: bool
    null_keys: int
    null_values: int
    null_headers: int
    null_header_values: int
    header_rows: int
    beyond: int
    beyond_time: int
    def __init__(
        self, end: int, *, keys: bool = True, values: bool = True, headers: bool = False
    ) -> None: ...
    def fill(self, reader: RecordReader, limit: int) -> int: ...
    def buffers(self) -> dict[str, Buffer]: ...
