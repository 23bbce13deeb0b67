"""Records with the header of their batch: producer, codec, transaction; control records where asked for.

`RecordReader` is faster, and leaves these out: programs that handle records do not need them.
"""

from __future__ import annotations

from tidelog.records import _pure_fetch as pure
from tidelog.records.batch import BatchHeader


class DetailedRecord(pure.ConsumerRecord):
    """A record, and the header of the batch that it was read from."""

    __slots__ = ("batch",)

    batch: BatchHeader


class DetailedReader(pure.RecordReader):
    """A reader whose `take` returns `DetailedRecord`s."""

    control_records = False
    """Whether records of control batches are returned too."""

    def _made(
        self, offset: int, layout: tuple[int, ...], attributes: int, base: int, greatest: int, epoch: int
    ) -> pure.ConsumerRecord:
        plain = super()._made(offset, layout, attributes, base, greatest, epoch)
        made = DetailedRecord(*pure.fields_of(plain))  # type: ignore[arg-type]  # in the order of parameters
        made.batch = BatchHeader(*self._fields)
        return made

    def _left_out(self, at: int, attributes: int, producer_id: int, last_offset: int) -> bool:
        left_out = super()._left_out(at, attributes, producer_id, last_offset)
        return left_out and not (self.control_records and attributes & 0x20)


class ControlRecordReader(DetailedReader):
    """Also returns the records of control batches: the ends of transactions."""

    control_records = True
