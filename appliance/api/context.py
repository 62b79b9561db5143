"""What the HTTP surfaces are given by the composition root."""

import itertools
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from appliance.api.body import Body, BodyBudget, Receive
from appliance.api.idempotency import IdempotencyStore
from appliance.api.rates import Rates
from appliance.gate.gate import Gate
from appliance.keys import Keyring
from appliance.metrics import Metrics
from appliance.serving.catalog import Catalog
from appliance.serving.drain import Drain
from appliance.serving.events import Events
from appliance.serving.request_log import RequestLog
from appliance.serving.status import Status
from appliance.settings import Settings


class Context:
    """Shared by all routes. ``status`` makes the JSON of ``/api/status``; ``offload`` is the pipelines' pool;
    ``reload`` reads settings and keys again, and tells what came of it; ``restart(reason)``: of all engines."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        gate: Gate,
        events: Events,
        metrics: Metrics,
        status: Status,
        offload: Callable[..., Any],
        drain: Drain,
        keys: Keyring,
        request_log: RequestLog,
    ) -> None:
        self.settings = settings
        self.catalog = catalog
        self.gate = gate
        self.events = events
        self.metrics = metrics
        self.status = status
        self.offload = offload
        self.drain = drain
        self.keys = keys
        self.request_log = request_log
        self.reload: Callable[[], Awaitable[dict[str, Any]]] = _nothing
        self.restart: Callable[[str], None] = lambda _reason: None
        self.bodies = BodyBudget(settings.max_body_total_bytes)
        keep_s = settings.idempotency_keep_ms / 1000
        self.idempotency = IdempotencyStore(settings.idempotency_bytes, keep_s, time.monotonic)
        self.rates = Rates(settings, catalog.models, status.notes)
        self.started = time.time()
        self._boot = secrets.token_hex(4)
        self._count = itertools.count(1)

    def body(self, headers: dict[bytes, bytes], receive: Receive) -> Body:
        """A request's body, within the settings' limits of bytes and time."""
        settings = self.settings
        return Body(headers, receive, self.bodies, settings.max_body_bytes, settings.body_timeout_ms / 1000)

    def renew(self) -> None:
        """Settings or keys have changed: what was made of them is made anew."""
        settings = self.settings
        self.bodies.limit = settings.max_body_total_bytes
        self.idempotency.bounds(settings.idempotency_bytes, settings.idempotency_keep_ms / 1000)
        self.rates.renew(self.keys.required)

    def new_request_id(self) -> str:
        """Unique over restarts, cheap to make."""
        return f"{self._boot}-{next(self._count):x}"


async def _nothing() -> dict[str, Any]:
    return {}
