"""Which call needs which scope: every route, told one by one."""

from unittest.mock import MagicMock

import pytest

from appliance.api.application import Application
from appliance.api.guard import Guard, needed
from appliance.api.hot import ShortWay
from appliance.errors import Forbidden, Unauthorized
from appliance.keys import Keyring
from appliance.settings import Settings

OPEN = {"POST /api/session", "GET /health", "GET /ready", "GET /v2/health/live", "GET /v2/health/ready"}
INFER = {
    "POST /predict/{model}",
    *(f"POST /v1/{what}" for what in ("chat/completions", "completions", "embeddings", "rerank")),
    "GET /v1/models",
    "GET /v1/models/{model}",
    *(f"POST /v2/models/{{model}}/{what}" for what in ("infer", "generate", "generate_stream")),
    *(f"POST /v2/models/{{model}}/versions/{{version}}/{what}" for what in ("infer", "generate", "generate_stream")),
    "POST /v2/repository/index",
    "GET /v2",
    "GET /v2/models/stats",
    *(f"GET /v2/models/{{model}}{what}" for what in ("", "/ready", "/config", "/stats")),
    *(f"GET /v2/models/{{model}}/versions/{{version}}{what}" for what in ("", "/ready", "/config", "/stats")),
    "GET /api/status",
    "GET /api/history",
    "GET /api/requests/{request_id}",
    "GET /api/events",
    "GET /metrics",
}


def test_every_route_has_the_scope_that_it_should_have() -> None:
    context = MagicMock(settings=Settings.model_construct(), keys=Keyring())
    paths = Application(context).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    found: dict[str | None, set[str]] = {}
    for route in routes:
        method, path = route.split(" ")
        found.setdefault(needed(path, method), set()).add(route)
    assert found[None] == OPEN
    assert found["infer"] == INFER
    # Everything else, whatever is added, needs `admin` until it is written here and in the guard.
    assert "POST /api/engine/restart" in found["admin"]
    assert {"POST /api/pause", "POST /api/shutdown", "POST /api/models", "POST /api/settings/reload"} < found["admin"]
    assert {f"POST /v2/repository/models/{{model}}/{what}" for what in ("load", "unload")} < found["admin"]


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/", None), ("GET", "/web/js/main.js", None), ("HEAD", "/health", None),
        ("GET", "/docs", "infer"), ("GET", "/docs/swagger-ui.css", "infer"), ("GET", "/openapi.json", "infer"),
        ("HEAD", "/api/status", "infer"), ("POST", "/v1/chat/completions", "infer"), ("GET", "/v1/models", "infer"),
        ("GET", "/health/", "admin"), ("GET", "/api/doctor", "admin"), ("GET", "/nothing", "admin"),
        ("POST", "/api/status", "admin"), ("PUT", "/predict/x", "admin"), ("DELETE", "/v2/models/x/infer", "admin"),
        ("POST", "/v2/models/x/load", "admin"), ("POST", "//predict/x", "admin"), ("GET", "", "admin"),
        ("get", "/api/status", "admin"),
    ],
)  # fmt: skip
def test_scopes(method: str, path: str, scope: str | None) -> None:
    assert needed(path, method) == scope


def test_what_is_set_anew_counts() -> None:
    settings = Settings(allowed_hosts=["one"], allowed_origins=["https://one"])
    guard = Guard(settings, Keyring())
    one = {b"host": b"one", b"origin": b"https://one"}
    assert guard.check("/v2", "GET", one) == "https://one"
    settings.take_up(Settings(allowed_hosts=["two"], allowed_origins=["https://two"]))
    guard.renew()
    with pytest.raises(Forbidden, match="Host 'one'"):
        guard.check("/v2", "GET", one)
    with pytest.raises(Forbidden, match="Origin 'https://one'"):
        guard.check("/v2", "GET", {**one, b"host": b"two"})
    assert guard.check("/v2", "GET", {b"host": b"two", b"origin": b"https://two"}) == "https://two"


def test_a_key_that_is_made_while_it_runs_is_asked_for_at_once() -> None:
    keys = Keyring()
    guard = Guard(Settings(), keys)
    plain = {b"host": b"localhost"}
    assert guard.check("/api/pause", "POST", plain) is None
    keys.renew([], "the-secret", False)
    with pytest.raises(Unauthorized):
        guard.check("/api/status", "GET", plain)
    assert guard.check("/api/pause", "POST", {**plain, b"authorization": b"Bearer the-secret"}) is None
    assert guard.check("/health", "GET", plain) is None


class Known:
    """A short way that has let a request in."""

    def __init__(self) -> None:
        context = MagicMock()
        context.gate.draining = False
        context.rates.limits.return_value = False
        context.settings.max_body_bytes = 100
        self.context = context
        self.way = ShortWay(context, MagicMock(), MagicMock(), lambda headers: "id")
        self.head = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n"
        visit = self.way.welcome(b"/v2/models/m/infer", {b"host": b"localhost", b"content-length": b"2"})
        assert visit is not None
        self.visit = visit

    def again(self) -> bool:
        return self.way.again(self.head + b"{}", MagicMock()) is not None


def test_a_head_that_was_let_in_is_known_until_it_is_forgotten() -> None:
    known = Known()
    known.way.remember(known.head + b"{}", known.visit, True)
    assert known.again()
    known.way.forget()
    assert not known.again()


def test_a_head_whose_body_was_still_coming_is_forgotten_too() -> None:
    known = Known()
    known.way.forget()
    known.way.remember(known.head + b"{}", known.visit, True)
    assert not known.again()


def test_a_known_head_is_of_no_use_once_the_appliance_drains() -> None:
    known = Known()
    known.way.remember(known.head + b"{}", known.visit, True)
    known.context.gate.draining = True
    assert not known.again()
