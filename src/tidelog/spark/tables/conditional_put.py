"""Whether an S3-compatible store has conditional writes: one object is created twice with `If-None-Match: *`.

The requests are signed with AWS Signature Version 4 here, since no dependency offers such a write.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

PAYLOAD = "UNSIGNED-PAYLOAD"
SECONDS = 30.0
CREATED, REFUSED = (200, 201), (409, 412)


@dataclass(frozen=True, slots=True)
class S3Place:
    """A folder of a bucket behind an endpoint, with the credentials for it."""

    endpoint: str
    bucket: str
    folder: str
    region: str
    key: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        return f"S3Place({self.endpoint!r}, {self.bucket!r}, {self.folder!r})"

    def has_conditional_writes(self) -> bool | None:
        """Create an object twice and delete it; None if the store does not take a plain write either."""
        path = f"/{self.bucket}/{self.folder.strip('/')}/_tidelog_probe_{uuid.uuid4().hex}"
        once = {"if-none-match": "*"}
        try:
            if self._request("PUT", path, once) not in CREATED:
                return None
            return self._request("PUT", path, once) in REFUSED
        finally:
            self._request("DELETE", path, {})

    def _request(self, method: str, path: str, headers: Mapping[str, str]) -> int:
        """The status of one request with an empty body."""
        parts = urlsplit(self.endpoint)
        connection = http.client.HTTPConnection(parts.netloc, timeout=SECONDS)
        if parts.scheme == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # takes the same certificates on every Python
            context.load_default_certs()
            connection = http.client.HTTPSConnection(parts.netloc, timeout=SECONDS, context=context)
        try:
            path = quote(f"{parts.path.rstrip('/')}{path}")
            signed = self._signed(method, path, {"host": parts.netloc, **headers}, datetime.now(UTC))
            connection.request(method, path, body=b"", headers=signed)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def _signed(self, method: str, path: str, headers: Mapping[str, str], now: datetime) -> dict[str, str]:
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        held = {**headers, "x-amz-content-sha256": PAYLOAD, "x-amz-date": stamp}
        if self.token:
            held["x-amz-security-token"] = self.token
        names = ";".join(sorted(held))
        lines = "".join(f"{name}:{held[name]}\n" for name in sorted(held))
        request = "\n".join((method, path, "", lines, names, PAYLOAD))
        scope = f"{stamp[:8]}/{self.region}/s3/aws4_request"
        text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
        key = f"AWS4{self.secret}".encode()
        for part in (stamp[:8], self.region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        held["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return held
