"""Who may call: Host, Origin and key. Pure decisions on a request's headers.

A web page that a person happens to visit can send requests to loopback; it can do so under its own Origin, or,
with a name that was made to resolve to 127.0.0.1, under a foreign Host. Both are refused.
"""

import hmac
from collections.abc import Mapping

from appliance.errors import Forbidden, Unauthorized
from appliance.settings import Settings

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_REMEMBERED = 256
_OPEN = frozenset({"/health", "/ready", "/v2/health/live", "/v2/health/ready"})


def _hostname(host: str) -> str:
    """``name`` of ``name:port``; brackets of an IPv6 address stay."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


class Guard:
    """Built from the settings; of requests it remembers right hosts only."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = _LOOPBACK | {h.lower() for h in settings.allowed_hosts}
        if settings.host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            self._hosts |= {f"[{settings.host}]" if ":" in settings.host else settings.host.lower()}
        self._origins = {o.rstrip("/").lower() for o in settings.allowed_origins}
        self._good: set[bytes] = set()  # Host headers that were found to be right
        self._key = settings.api_key.encode() if settings.api_key else None

    def check(self, path: str, method: str, headers: Mapping[bytes, bytes]) -> str | None:
        """Raises Forbidden, Unauthorized. Returns the Origin to allow in the answer, or None."""
        told = headers.get(b"host", b"")
        if told not in self._good:
            self._check_host(told)
        origin = None
        if b"origin" in headers or b"sec-fetch-site" in headers:
            origin = self._origin(headers, told.decode("latin-1"), method)
        if self._key is not None and path not in _OPEN and method != "OPTIONS":
            given = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
            if not hmac.compare_digest(given, self._key):
                raise Unauthorized("a valid API key is needed: Authorization: Bearer … or X-API-Key")
        return origin

    def _check_host(self, told: bytes) -> None:
        host = told.decode("latin-1")
        if _hostname(host) not in self._hosts:
            raise Forbidden(
                f"Host '{host[:64]}' is not one this service answers to (see allowed_hosts)", param="Host"
            )
        if len(self._good) < _REMEMBERED and len(told) <= 256:
            self._good.add(told)

    def _origin(self, headers: Mapping[bytes, bytes], host: str, method: str) -> str | None:
        sent = headers.get(b"origin")
        if sent is None:
            # Browsers leave Origin out of plain cross-site GETs but tell the relation; following a link is fine.
            if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not (
                method == "GET" and headers.get(b"sec-fetch-mode") == b"navigate"
            ):
                raise Forbidden("requests from other web sites are refused (see allowed_origins)", param="Origin")
            return None
        origin = sent.decode("latin-1").rstrip("/").lower()
        if origin in self._origins or origin == f"http://{host.lower()}":
            return origin
        raise Forbidden(f"Origin '{origin[:64]}' is not allowed (see allowed_origins)", param="Origin")
