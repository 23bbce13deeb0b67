"""The status codes of the loops over batches, the same in plain Python and in Cython.

The numbers up to `OLD_ZSTD` name the first rule that a batch breaks, in the order in which `BatchRules.look`
and `walk` check them. The rest are answers of the cleaner's loops.
"""

OK = 0
COMPRESSED = 1  # good so far; the records have to be unpacked, or the cleaner's loops do not handle the batch
NO_BATCH = 2
BAD_LENGTH = 3
OLD_MAGIC = 4
SECOND_BATCH = 5
BASE_OFFSET = 6
TOO_LARGE = 7
BAD_CRC = 8
UNKNOWN_CODEC = 9
BAD_OFFSET_RANGE = 10
BAD_COUNT = 11
COUNT_MISMATCH = 12
CONTROL_BATCH = 13
BAD_SEQUENCE = 14
APPEND_TIME = 15  # the producer set the LogAppendTime bit: each record has to be checked
MALFORMED = 16
CUT_SHORT = 17
BYTES_LEFT = 18
OFFSET_DELTA = 19
UNKNOWN_MAGIC = 20
RECORD_ERRORS = 21  # some records lack a key or lie outside the allowed times
OLD_ZSTD = 22  # compressed with zstd by a client whose protocol version does not know that codec

MAP_FULL = 23  # the map of offsets has no free slot for the next key
NO_ROOM = 24  # the output buffer is too small for the next batch
UNCHANGED = 25  # the cleaner keeps the batch as it is
REWRITTEN = 26  # the cleaner keeps some records of the batch
EMPTIED = 27  # the cleaner keeps the header of the batch and no record
DROPPED = 28  # the cleaner keeps nothing of the batch
