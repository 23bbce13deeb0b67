from tidelog.network._pure import Entry

def known_header(
    buffer: bytearray, start: int, end: int, entries: dict[int, Entry], client: bytes
) -> tuple[Entry, int, int] | None: ...

class RequestTimes:
    def __init__(
        self, total: list[int], local: list[int], send: list[int], size: list[int], queue: list[int]
    ) -> None: ...
    def record(
        self,
        size: int,
        received_ns: int,
        started_ns: int,
        local_end_ns: int,
        send_start_ns: int,
        sent_ns: int,
    ) -> None: ...
