"""PEM text: cuts it into its blocks, also where all lines of a block were joined to one.

A properties file that continues lines with backslashes joins them, so settings have such blocks.
"""

from __future__ import annotations

import base64
import binascii
import re
import textwrap
from dataclasses import dataclass, field

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


@dataclass(slots=True, frozen=True)
class PemBlock:
    """One block, with lines of 64 characters. `label` is CERTIFICATE, PRIVATE KEY, ..."""

    label: str
    text: str = field(repr=False)

    @property
    def is_certificate(self) -> bool:
        return self.label in ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")

    @property
    def is_private_key(self) -> bool:
        return self.label.endswith("PRIVATE KEY")

    @property
    def is_encrypted(self) -> bool:
        return self.label.startswith("ENCRYPTED") or "Proc-Type: 4,ENCRYPTED" in self.text


def pem_blocks(text: str) -> list[PemBlock]:
    """The blocks of a text in their order; text around them is left out. Raises ValueError for a broken one.

    >>> [block.label for block in pem_blocks("-----BEGIN A----- MTIz NDU2 -----END A----- other text")]
    ['A']
    """
    return [PemBlock(label, _block(label, body)) for label, body in _BLOCK.findall(text)]


def pem(label: str, data: bytes) -> str:
    """The block of binary data."""
    lines = textwrap.wrap(base64.b64encode(data).decode(), 64)
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def _block(label: str, body: str) -> str:
    if ":" in body:  # headers, which need the lines as they are
        return f"-----BEGIN {label}-----{body}-----END {label}-----\n"
    try:
        return pem(label, base64.b64decode("".join(body.split()), validate=True))
    except binascii.Error:
        raise ValueError(f"the block {label} is not base64") from None
