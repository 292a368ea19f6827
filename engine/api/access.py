"""Who may reach the API: the API key, and where it may listen without one."""

from __future__ import annotations

import hmac
import ipaddress

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .errors import ApiError

OPEN_PATHS = frozenset({"/health"})  # probes carry no key and learn nothing but whether the engine works


def listen_allowed(host: str, api_key: str | None) -> str | None:
    """None when the API may listen on `host`, else why not: without a key, only this machine's own addresses."""
    if api_key is not None or _is_loopback(host):
        return None
    return f"listening on {host} needs an API key: set ARC_API_KEY, or listen on 127.0.0.1"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name: what it resolves to may change after the check


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
