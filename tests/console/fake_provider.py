"""A small OpenID Connect provider: discovery, keys, codes and tokens, with switches for wrong answers."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

CLIENT, SECRET = "tidelog-console", "the console's secret: 100%"


class Provider:
    """Runs on a port of the system. `claims` and `header` go into each id token over the right ones."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.claims: dict[str, Any] = {}
        self.other_key: ec.EllipticCurvePrivateKey | None = None
        self.lies_about_issuer = False
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.get(self)

            def do_POST(self) -> None:
                provider.post(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def approve(self, url: str) -> str:
        """The person logs in: the address that the provider sends the browser back to."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        assert query["response_type"] == "code"
        code = f"code{len(self._codes)}"
        self._codes[code] = query
        return f"{query['redirect_uri']}?code={code}&state={query['state']}"

    def access_token(self, key: ec.EllipticCurvePrivateKey | None = None, **claims: Any) -> str:
        """A token that a program gets for the console, with some claims over the right ones."""
        now = int(time.time())
        right = {"iss": self.issuer, "sub": "robot", "aud": CLIENT, "iat": now, "exp": now + 300}
        return jwt.encode({**right, **claims}, key or self.key, "ES256", {"kid": "one"})

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/.well-known/openid-configuration":
            document = {
                "issuer": "https://other.example" if self.lies_about_issuer else self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
            _answer(handler, 200, document)
        elif handler.path == "/keys":
            public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key()))
            _answer(handler, 200, {"keys": [{**public, "kid": "one", "use": "sig", "alg": "ES256"}]})
        else:
            _answer(handler, 404, {})

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        form = dict(parse_qsl(handler.rfile.read(int(handler.headers["Content-Length"])).decode()))
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        authorization = base64.b64decode(handler.headers["Authorization"].removeprefix("Basic ")).decode()
        good = authorization == f"{CLIENT}:the+console%27s+secret%3A+100%25"
        if asked is None or asked["code_challenge"] != challenge or not good:
            _answer(handler, 400, {"error": "invalid_grant"})
            return
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": "carol",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            "groups": ["billing-team"],
            **self.claims,
        }
        token = jwt.encode(claims, self.other_key or self.key, "ES256", {"kid": "one"})
        access = {"iss": self.issuer, "sub": claims["sub"], "iat": now, "exp": now + 300}
        tokens = {
            "id_token": token,
            "access_token": jwt.encode(access, self.key, "ES256", {"kid": "one"}),
            "token_type": "Bearer",
            "expires_in": 300,
        }
        _answer(handler, 200, tokens)


def _answer(handler: BaseHTTPRequestHandler, status: int, document: object) -> None:
    body = json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
