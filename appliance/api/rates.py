"""Rate limits at the door: how many inference requests a client may send, and how many a model takes, in a time.

Counted by the ``limits`` library with a sliding window counter, in memory or in a Redis that several appliances
share. A storage that does not answer never holds up a request: while it is away nothing is limited.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Mapping
from typing import Any

import structlog

from appliance.api.body import Scope
from appliance.errors import RateLimited
from appliance.serving.served import ServedModel
from appliance.settings import Settings

log = structlog.get_logger("api")

AWAY = "the storage of the rate limits does not answer: requests are not limited"

_PATIENCE_S = 0.25  # what a request may lose to a storage that does not answer, once
_RETRY_S = 1.0
_CONNECTIONS = 64
_PREFIX = "APPLIANCE"


class Rates:
    """All rates of one appliance. ``models`` is the catalog's; ``notes`` the status's list of standing remarks.

    Without any rate nothing is imported, connected or awaited.
    """

    def __init__(self, settings: Settings, models: Mapping[str, ServedModel], notes: list[str]) -> None:
        self._settings = settings
        self._client_rate = settings.rate_limit_client
        self._model_rate = settings.rate_limit_model
        self._address = settings.rate_limit_storage
        self._keyed = settings.api_key is not None
        self._models = models
        self._notes = notes
        self._store: _Store | None = None
        self._opening = asyncio.Lock()
        self._waiting: asyncio.Task[None] | None = None
        if self._client_rate or self._model_rate:
            self._store = _Store(self._address)

    def renew(self, keyed: bool) -> None:
        """The settings have changed. ``keyed``: whether callers need a key, which then tells who they are."""
        self._client_rate, self._model_rate = self._settings.rate_limit_client, self._settings.rate_limit_model
        self._keyed = keyed

    def limits(self, model: str) -> bool:
        """Whether a request to ``model`` has to be counted."""
        if self._client_rate is not None:
            return True
        served = self._models.get(model)
        return served is not None and (served.folder.config.limits.rate or self._model_rate) is not None

    async def take(self, model: str, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Count one request: first of its client, then of its model. Raises RateLimited.

        A request that its model's rate refuses has counted for its client; one that its client's rate refuses
        has counted for nobody.
        """
        if self._waiting is not None:
            return
        if self._store is None:
            await self._open()
        assert self._store is not None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if self._client_rate is not None:
                    await self._store.take(self._client_rate, "client", client_of(scope, headers, self._keyed))
                served = self._models.get(
                    model
                )  # rates are kept of models that exist only: names are free to make up
                rate = (served.folder.config.limits.rate or self._model_rate) if served is not None else None
                if rate is not None:
                    await self._store.take(rate, "model", model)
        except self._store.faults as fault:
            self._lost(fault)

    async def close(self) -> None:
        """Let the storage's connections go."""
        if self._waiting is not None:
            self._waiting.cancel()
        if self._store is not None:
            await self._store.close()

    async def _open(self) -> None:
        async with self._opening:
            if self._store is None:
                self._store = await asyncio.to_thread(_Store, self._address)  # its imports take a while

    def _lost(self, fault: BaseException) -> None:
        if self._waiting is None:
            log.warning(AWAY, reason=str(fault) or f"no answer within {_PATIENCE_S:g} s")
            self._notes.append(AWAY)
            self._waiting = asyncio.create_task(self._return(), name="rates")

    async def _return(self) -> None:
        """Ask until the storage answers; requests pass meanwhile."""
        assert self._store is not None
        answers = False
        while not answers:
            await asyncio.sleep(_RETRY_S)
            with contextlib.suppress(*self._store.faults):
                async with asyncio.timeout(_PATIENCE_S):
                    await self._store.probe()
                    answers = True
        with contextlib.suppress(ValueError):
            self._notes.remove(AWAY)
        self._waiting = None
        log.info("the storage of the rate limits answers again")


class _Store:
    """The library's limiter on one storage. Made in any thread, used in the loop."""

    def __init__(self, address: str) -> None:
        import limits
        from limits.aio.storage import MemoryStorage, RedisStorage
        from limits.aio.strategies import SlidingWindowCounterRateLimiter
        from limits.errors import StorageError

        self._parse = limits.parse
        self._pool: Any = None
        self.faults: tuple[type[BaseException], ...] = (StorageError, OSError, TimeoutError)
        if address.startswith("redis"):
            self._pool = _redis_pool(address)
            storage: MemoryStorage | RedisStorage = RedisStorage(
                f"async+{address}",
                wrap_exceptions=True,
                implementation="redispy",
                key_prefix=_PREFIX,
                connection_pool=self._pool,
            )
        else:
            storage = MemoryStorage()
        self._limiter = SlidingWindowCounterRateLimiter(storage)

    async def take(self, rate: str, kind: str, name: str) -> None:
        """Raises RateLimited, with the time until the window has room again; or one of ``faults``."""
        item = self._parse(rate)
        if not await self._limiter.hit(item, kind, name):
            window = await self._limiter.get_window_stats(item, kind, name)
            whose = f"model '{name}'" if kind == "model" else "this client"
            wait_s = max(0.0, window.reset_time - time.time())
            raise RateLimited(f"over the rate limit of {whose}, {rate}", retry_after_s=wait_s)

    async def probe(self) -> None:
        """Write something, as a request would. Raises one of ``faults``."""
        await self._limiter.hit(self._parse("1000000/second"), "probe")

    async def close(self) -> None:
        if self._pool is not None:
            with contextlib.suppress(*self.faults):
                await self._pool.disconnect()


def _redis_pool(address: str) -> Any:
    """Connections that give up soon. One attempt more covers those that a restart of Redis has cut."""
    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return BlockingConnectionPool.from_url(
        address,
        max_connections=_CONNECTIONS,
        timeout=_PATIENCE_S,
        socket_timeout=_PATIENCE_S,
        socket_connect_timeout=_PATIENCE_S,
        retry=Retry(NoBackoff(), 1),
    )


def client_of(scope: Scope, headers: Mapping[bytes, bytes], keyed: bool) -> str:
    """Who counts as one client: the key, where one is needed and so was checked (as a hash), else the address.

    A key that nobody checks would let a caller be somebody else each time.
    """
    if keyed:
        key = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        return f"key-{hashlib.sha256(key).hexdigest()[:32]}"
    return str((scope.get("client") or ("",))[0])
