"""The fields of a certificate in DER, and when it ends."""

from __future__ import annotations

from datetime import UTC, datetime

from tidelog.security.der import CONSTRUCTED, CONTEXT, SEQUENCE, Der, DerError

VALIDITY, SUBJECT = 3, 4
UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
_FORMS = {UTC_TIME: "%y%m%d%H%M%SZ", GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


def certificate_fields(certificate: bytes) -> list[Der]:
    """The fields of a certificate, without the version at its start. Raises DerError."""
    fields = Der.parse(certificate).items()[0].items()
    return fields[1:] if fields and fields[0].tag == CONTEXT | CONSTRUCTED else fields


def certificate_field(certificate: bytes, index: int, what: str) -> Der:
    """A field that is a sequence. Raises DerError that names what is missing."""
    fields = certificate_fields(certificate)
    if len(fields) <= index:
        raise DerError(f"the certificate has no {what}")
    return fields[index].expect(SEQUENCE)


def end_of(certificate: bytes) -> float:
    """When a certificate ends, in seconds since 1970. Raises DerError."""
    times = certificate_field(certificate, VALIDITY, "validity").items()
    if len(times) != 2 or times[1].tag not in _FORMS:
        raise DerError("the certificate does not say when it ends")
    text = times[1].content.decode("ascii", errors="replace")
    try:
        # Years of two digits are 1950 to 2049 (RFC 5280), and 1969 to 2068 for Python.
        end = datetime.strptime(text, _FORMS[times[1].tag]).replace(tzinfo=UTC)
    except ValueError:
        raise DerError(f"the certificate ends at {text!r}") from None
    if times[1].tag == UTC_TIME and end.year >= 2050:
        end = end.replace(year=end.year - 100)
    return end.timestamp()
