"""What the HTTP surfaces are given by the composition root."""

import itertools
import secrets
import time
from collections.abc import Callable
from typing import Any

from appliance.api.body import BodyBudget
from appliance.api.idempotency import IdempotencyStore
from appliance.api.rates import Rates
from appliance.gate.gate import Gate
from appliance.metrics import Metrics
from appliance.serving.catalog import Catalog
from appliance.serving.events import Events
from appliance.serving.status import Status
from appliance.settings import Settings


class Context:
    """Shared by all routes. ``status`` makes the JSON of ``/api/status``; ``offload`` is the pipelines' pool."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        gate: Gate,
        events: Events,
        metrics: Metrics,
        status: Status,
        offload: Callable[..., Any],
    ) -> None:
        self.settings = settings
        self.catalog = catalog
        self.gate = gate
        self.events = events
        self.metrics = metrics
        self.status = status
        self.offload = offload
        self.bodies = BodyBudget(settings.max_body_total_bytes)
        keep_s = settings.idempotency_keep_ms / 1000
        self.idempotency = IdempotencyStore(settings.idempotency_bytes, keep_s, time.monotonic)
        self.rates = Rates(settings, catalog.models, status.notes)
        self.started = time.time()
        self._boot = secrets.token_hex(4)
        self._count = itertools.count(1)

    def new_request_id(self) -> str:
        """Unique over restarts, cheap to make."""
        return f"{self._boot}-{next(self._count):x}"
