"""An issuer of tokens: its keys, the tokens that it signs, and a JWKS server that can misbehave."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from starlette.requests import Request
from starlette.responses import Response

from penstock.web.server import Server
from support.fakes.routes import routes

# Seconds for which a token is valid. Modules make tokens when they are imported, and their tests
# may run a quarter of an hour later.
VALID_S = 6 * 3600
SECRET = "a-secret-of-tests-that-is-long-enough"
ISSUER, AUDIENCE = "https://issuer.example", "penstock"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_ALGORITHMS: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


class Key:
    """One key pair of the issuer."""

    def __init__(self, kid: str, algorithm: str = "RS256", bits: int = 2048) -> None:
        made: dict[str, Any] = {
            "RS256": lambda: rsa.generate_private_key(65537, bits),
            "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate,
        }
        self.kid = kid
        self.algorithm = algorithm
        self.private: PrivateKey = made[algorithm]()

    @property
    def jwk(self) -> dict[str, Any]:
        """The public key as the JWKS server publishes it."""
        public: Any = self.private.public_key()
        document: dict[str, Any] = orjson.loads(_ALGORITHMS[self.algorithm].to_jwk(public))
        return {
            **{name: value for name, value in document.items() if name != "key_ops"},
            "kid": self.kid,
            "use": "sig",
            "alg": self.algorithm,
        }

    @property
    def pem(self) -> bytes:
        """The public key as PEM, which anybody can have."""
        return self.private.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )

    def token(self, **claims: Any) -> str:
        """Return a token that this key signs."""
        headers = {"kid": self.kid}
        return jwt.encode(claims_of(claims), self.private, self.algorithm, headers=headers)


def claims_of(changes: dict[str, Any]) -> dict[str, Any]:
    """Return a plain user's claims with these changes; a value of None removes the claim."""
    claims = {"sub": "alice", "exp": int(time.time()) + VALID_S, **changes}
    return {name: value for name, value in claims.items() if value is not None}


def token(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """Return a token that the secret signs."""
    return jwt.encode(claims_of(claims), secret, algorithm)


class JwksServer:
    """Publish `keys`. `status`, `body` and `location` change the answer."""

    def __init__(self, path: str = "/jwks") -> None:
        self._path = path
        self.keys: list[Key] = []
        self.status = 200
        self.body: bytes | None = None
        self.location = ""
        self.reads = 0
        self.answering = asyncio.Event()
        self.answering.set()
        self._server = Server(routes(path, self._answer), "127.0.0.1", 0)

    @property
    def url(self) -> str:
        """The URL of the keys."""
        return f"http://127.0.0.1:{self._server.port}{self._path}"

    async def _answer(self, request: Request) -> Response:
        self.reads += 1
        await self.answering.wait()
        document = orjson.dumps({"keys": [key.jwk for key in self.keys]})
        headers = {"location": self.location} if self.location else {}
        return Response(self.body or document, self.status, headers, "application/json")

    async def start(self) -> None:
        """Start to listen."""
        await self._server.start()

    async def stop(self) -> None:
        """Answer the open requests, and close the server."""
        self.answering.set()
        await self._server.stop()
