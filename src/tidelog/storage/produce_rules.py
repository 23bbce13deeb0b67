"""ProduceRules from the settings of a topic."""

from __future__ import annotations

from tidelog.records.check import ProduceRules
from tidelog.records.codecs import Codec
from tidelog.storage.config import LogConfig

_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def produce_rules(config: LogConfig, *, from_client: bool = True) -> ProduceRules:
    """The rules that a batch produced to a topic with these settings has to follow."""
    codec = _CODECS[config.compression_type]
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return ProduceRules(
        max_message_bytes=config.max_message_bytes,
        log_append_time=config.log_append_time,
        timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        compacted=config.compacted,
        target_codec=codec,
        target_level=None if codec is None else levels.get(codec),
        from_client=from_client,
        max_unpacked=config.batch_unpacked_max_bytes,
    )
