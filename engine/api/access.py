"""Who may reach the API: the API key. Where it may listen without one is checked with the settings (config.py)."""

from __future__ import annotations

import hmac

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .errors import ApiError

OPEN_PATHS = frozenset({"/health"})  # probes carry no key and learn nothing but whether the engine works


def require_key(api_key: str) -> Middleware:
    """Refuses with 401 what does not carry `Authorization: Bearer <api_key>`."""
    expected = api_key.encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(
                given.strip().encode("utf-8", "surrogateescape"), expected
            ):
                raise ApiError(
                    401,
                    "this server needs its API key: send 'Authorization: Bearer <key>'",
                    kind="authentication_error",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        return await handler(request)

    return check
