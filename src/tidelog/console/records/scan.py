"""Reads partitions from one offset to another, chunk by chunk: for exports and analyses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from tidelog.console.records.topic_reader import Chunk, OffsetRange, TopicReader

CHUNK_BYTES = 1 << 20


async def scan(
    reader: TopicReader, ranges: Mapping[int, OffsetRange], max_bytes: int = CHUNK_BYTES
) -> AsyncIterator[tuple[Chunk, int]]:
    """The chunks of all partitions in turns, each with the offset at which its partition ends."""
    at = {index: found.start for index, found in ranges.items() if found.start < found.end}
    while at:
        for index in list(at):
            chunk = (await reader.fetch({index: at[index]}, max_bytes))[index]
            yield chunk, ranges[index].end
            if chunk.next_offset <= at[index] or chunk.next_offset >= ranges[index].end:
                del at[index]
            else:
                at[index] = chunk.next_offset
            await asyncio.sleep(0)
