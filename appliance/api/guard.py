"""Who may call what: Host, Origin, and the key's scope. Pure decisions on a request's headers.

A web page that a person happens to visit can send requests to loopback; it can do so under its own Origin, or,
with a name that was made to resolve to 127.0.0.1, under a foreign Host. Both are refused.
"""

from collections.abc import Mapping

from appliance.errors import Forbidden, Unauthorized
from appliance.keys import Keyring, Scope
from appliance.settings import Settings

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_REMEMBERED = 256
_OPEN = frozenset({"/health", "/ready", "/v2/health/live", "/v2/health/ready", "/"})
_OPEN_BELOW = "/web/"  # the dashboard's own files: it asks for the key itself

# Where a key of the scope `infer` is enough: reading what goes on, and inference. All else, and all that is yet to
# come, needs `admin`.
_READ = frozenset(
    {"/v2", "/metrics", "/docs", "/openapi.json", "/api/status", "/api/history", "/api/events", "/v1/models"}
)
_READ_BELOW = ("/v2/", "/docs/", "/api/requests/", "/v1/models/")
_INFER = frozenset(
    {"/v2/repository/index", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank"}
)
_INFER_BELOW = "/predict/"
_MODELS_BELOW = "/v2/models/"
_RUNS = ("/infer", "/generate", "/generate_stream")


def needed(path: str, method: str) -> Scope | None:
    """The scope that a key must have for a call; None: it needs no key. The one place where this is decided."""
    if path in _OPEN or path.startswith(_OPEN_BELOW) or (path, method) == ("/api/session", "POST"):
        return None  # the session's code is as good as a key
    if method in ("GET", "HEAD"):
        return "infer" if path in _READ or path.startswith(_READ_BELOW) else "admin"
    if method == "POST" and (
        path in _INFER or path.startswith(_INFER_BELOW) or (path.startswith(_MODELS_BELOW) and path.endswith(_RUNS))
    ):
        return "infer"
    return "admin"


def _hostname(host: str) -> str:
    """``name`` of ``name:port``; brackets of an IPv6 address stay."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


class Guard:
    """Built from the settings and the keys; of requests it remembers right hosts only."""

    def __init__(self, settings: Settings, keys: Keyring) -> None:
        self._settings = settings
        self._keys = keys
        self._good: set[bytes] = set()  # Host headers that were found to be right
        self.renew()

    def renew(self) -> None:
        """The settings have changed. (The keys may change at any time.)"""
        settings = self._settings
        self._hosts = _LOOPBACK | {h.lower() for h in settings.allowed_hosts}
        if settings.host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            self._hosts |= {f"[{settings.host}]" if ":" in settings.host else settings.host.lower()}
        self._origins = {o.rstrip("/").lower() for o in settings.allowed_origins}
        self._good.clear()

    def check(self, path: str, method: str, headers: Mapping[bytes, bytes]) -> str | None:
        """Raises Forbidden, Unauthorized. Returns the Origin to allow in the answer, or None."""
        told = headers.get(b"host", b"")
        if told not in self._good:
            self._check_host(told)
        origin = None
        if b"origin" in headers or b"sec-fetch-site" in headers:
            origin = self._origin(headers, told.decode("latin-1"), method)
        if self._keys.required and method != "OPTIONS":  # browsers ask their questions without a key
            self._check_key(path, method, headers)
        return origin

    def _check_key(self, path: str, method: str, headers: Mapping[bytes, bytes]) -> None:
        scope = needed(path, method)
        if scope is None:
            return
        given = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        found = self._keys.scope_of(given)
        if found is None:
            raise Unauthorized("a valid API key is needed: Authorization: Bearer … or X-API-Key")
        if scope == "admin" and found != "admin":
            raise Forbidden(f"this key has the scope '{found}', which is not enough: '{scope}' is needed")

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
