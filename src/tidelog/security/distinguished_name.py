"""The distinguished name and the alternative names of a certificate, as Java writes them.

The text is RFC 2253 as of `X500Principal.getName`: mapping rules, super users and ACLs of Kafka are written
for exactly that text.
"""

from __future__ import annotations

from tidelog.security.certificate_fields import SUBJECT, certificate_field, certificate_fields
from tidelog.security.der import CONSTRUCTED, CONTEXT, OCTET_STRING, SET, Der

# The attributes that RFC 2253 names. All others are written as a number and the DER of their value.
KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# The tags of texts: UTF8, Printable, T61, IA5, General, Universal and BMP strings. Java reads all as UTF-8.
_TEXTS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
_ESCAPED = frozenset(',=+<>#;"\\')
_BLANK = " \r"
SUBJECT_ALT_NAME = "2.5.29.17"


def subject_of(certificate: bytes) -> str:
    """The distinguished name of the subject of a certificate in DER. Raises DerError."""
    return _name(certificate_field(certificate, SUBJECT, "subject"))


def alternative_names(certificate: bytes) -> frozenset[bytes]:
    """The subject alternative names of a certificate, each in DER. Raises DerError."""
    for field in certificate_fields(certificate):
        if field.tag != CONTEXT | CONSTRUCTED | 3:
            continue
        for extension in field.inner(3).items():
            values = extension.items()
            if values[0].oid == SUBJECT_ALT_NAME:
                names = Der.parse(values[-1].expect(OCTET_STRING).content)
                return frozenset(name.encoded for name in names.items())
    return frozenset()


def _name(name: Der) -> str:
    """The last part comes first."""
    return ",".join("+".join(map(_attribute, part.items(SET))) for part in reversed(name.items()))


def _attribute(attribute: Der) -> str:
    kind, value = attribute.items()
    keyword = KEYWORDS.get(kind.oid)
    if keyword is None or value.tag not in _TEXTS:
        return f"{keyword or kind.oid}=#{value.encoded.hex()}"
    return f"{keyword}={_escaped(value.content.decode(errors='replace'))}"


def _escaped(text: str) -> str:
    escaped = "".join(
        f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text
    )
    start = len(escaped) - len(escaped.lstrip(_BLANK))
    if start == len(escaped):
        return "".join(f"\\{each}" for each in escaped)
    end = len(escaped.rstrip(_BLANK))
    before = "".join(f"\\{each}" for each in escaped[:start])
    after = "".join(f"\\{each}" for each in escaped[end:])
    return before + escaped[start:end] + after
