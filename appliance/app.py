"""The composition root: the only module that knows all parts. The server lives in a thread of its own, so that the
main thread is free for the tray icon and for signals."""

import asyncio
import concurrent.futures
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import structlog
import uvicorn
import watchfiles

from appliance.api.application import Application
from appliance.api.context import Context
from appliance.api.protocol import bounded
from appliance.controls import LoopControls
from appliance.engine.client import EngineClient
from appliance.engine.fleet import Fleet, Place, places_here
from appliance.gate.gate import Gate
from appliance.keys import Keyring
from appliance.live import Live
from appliance.logs import rotate
from appliance.metrics import Metrics
from appliance.serving.catalog import Catalog
from appliance.serving.drain import Drain
from appliance.serving.events import Events
from appliance.serving.gauges import Gauges
from appliance.serving.observer import MetricsObserver
from appliance.serving.pool import WorkPool
from appliance.serving.request_log import RequestLog
from appliance.serving.roots import models_roots
from appliance.serving.status import Status
from appliance.settings import Settings
from appliance.system import collector, devices, paths
from appliance.system.devices import DeviceReading
from appliance.system.loops import new_event_loop
from appliance.watches import watches

log = structlog.get_logger("appliance")

T = TypeVar("T")
_FLUSH_S = 1  # for answers that a client takes slowly
_ENGINE_S = 0.5  # for engines that were told to end; they do at once, unless one hangs


class Appliance:
    """The whole program, without its commands. ``listener`` is a bound, listening socket; ``packs``: the state folder
    whose runtime packs are used, where that is another one; ``live``: the settings are those of the files and the
    environment, and follow them.

    ``start`` returns when the port answers; ``stop`` when everything has ended, within ``shutdown_ms`` plus about
    two seconds; ``stopped`` is set at the end, whoever asked for it.
    ``controls`` is there from ``start`` on.
    """

    def __init__(
        self, settings: Settings, listener: socket.socket, packs: Path | None = None, live: bool = False
    ) -> None:
        self.settings = settings
        self.keys = Keyring()
        self._live = live
        self._packs = packs or settings.state_folder()
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_wanted: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._thread_main, name="server", daemon=True)
        self._started = threading.Event()
        self._fault: BaseException | None = None
        self.stopped = threading.Event()
        self.changed = threading.Event()
        self._status: Status | None = None
        self.controls: LoopControls | None = None

    @property
    def address(self) -> str:
        """``http://127.0.0.1:11711``."""
        host, port = self._listener.getsockname()[:2]
        # Who listens everywhere is still called by an address, and by the one the guard knows.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def start(self) -> None:
        """Raises what kept the server from starting."""
        self._thread.start()
        self._started.wait()
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """End everything; may be called from any thread, also twice."""
        if self._loop is not None and self._stop_wanted is not None and not self.stopped.is_set():
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._stop_wanted.set)
        self._thread.join()

    def status(self) -> dict[str, Any]:
        """The picture of ``/api/status``, from another thread."""
        if self._loop is None or self._status is None or self.stopped.is_set():
            return {"state": "stopped"}
        try:
            return asyncio.run_coroutine_threadsafe(_call(self._status), self._loop).result(2)
        except (TimeoutError, RuntimeError, concurrent.futures.CancelledError):
            return {"state": "stopped"}

    @property
    def failed(self) -> bool:
        """True when the server ended through a fault."""
        return self._fault is not None

    def note(self, words: str) -> None:
        """A standing remark for ``/api/status``."""
        if self._status is not None:
            self._status.notes.append(words)

    def _thread_main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            self._fault = error
            log.exception("the server ended")
        finally:
            self.stopped.set()
            self._started.set()
            self.changed.set()

    async def _main(self) -> None:
        settings = self.settings
        self._loop, self._stop_wanted = asyncio.get_running_loop(), asyncio.Event()
        metrics, events = Metrics(), Events()
        fleet: Fleet
        observer = MetricsObserver(metrics)
        gate = Gate(settings, observer, lambda reason, engine: fleet.kill(reason, engine))
        request_log = RequestLog(settings.state_folder() / "logs" / "requests.log", gate.requests)
        observer.on_error = request_log.failed
        probe = devices.detect()

        def engine_up(client: EngineClient, engine: str) -> None:
            catalog.engine_up(client, engine)
            events.publish("engine", state="up", engine=engine, pid=fleet.engines[engine].pid)
            self.changed.set()

        def engine_down(reason: str, engine: str) -> None:
            catalog.engine_down(reason, engine)
            self.changed.set()

        def engine_failing(engine: str) -> None:
            catalog.engine_failing(engine)

        def command(place: Place, family: str) -> list[str]:
            return paths.engine_command(settings.log_level, self._packs, family, place.cores)

        engine_log = settings.state_folder() / "logs" / "engine.log"
        rotate(engine_log)
        found = probe.read()
        gate.memory.pools = {device.id: device.pool for device in found}
        where = places_here(settings.device, found)
        load_s = settings.load_timeout_ms / 1000
        fleet = Fleet(
            where, command, lambda engine: engine_log, engine_up, engine_down, engine_failing, load_s=load_s
        )
        catalog = Catalog(settings, models_roots(settings), gate, events, fleet)
        workers = settings.pipeline_threads or os.cpu_count() or 1
        pool = WorkPool(workers)
        own = psutil.Process()

        def read_devices() -> list[DeviceReading]:
            return probe.read([os.getpid(), *fleet.pids()])

        status = Status(settings, catalog, gate, fleet.engines, read_devices, metrics)
        metrics.state.add(
            Gauges(catalog, gate, fleet.engines, metrics, status.devices, lambda: own.memory_info().rss, time.time())
        )
        status.address = self.address
        self._status = status
        drain = Drain(gate, self._stop_wanted.set)
        self.controls = LoopControls(
            self._loop, catalog, gate, fleet.restart, drain, load_s, self.changed.set, self.keys
        )
        context = Context(settings, catalog, gate, events, metrics, status, pool, drain, self.keys, request_log)
        context.restart = fleet.restart
        metrics.state.add(lambda put: put("body_bytes", context.bodies.held))
        application = Application(context)
        live = Live(application, context, observer, self._live)
        server = uvicorn.Server(_server_config(application, settings))
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]  # the main thread's
        tasks = [
            asyncio.create_task(catalog.run(), name="catalog"),
            asyncio.create_task(_watch(settings.models_folder(), catalog), name="watcher"),
            asyncio.create_task(self._follow(events, application), name="follow"),
            asyncio.create_task(live.watch(), name="settings"),
            asyncio.create_task(_tell_ready(catalog, events), name="ready"),
            asyncio.create_task(status.history.run(), name="history"),
            *watches(settings.state_folder(), gate, fleet.engines, events, catalog, status.notes),
        ]
        fleet.start()
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        while not server.started and not serving.done():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)
        collector.calm()  # looking through all that is loaded stops the loop for some 17 ms
        self._started.set()
        log.info("listening", address=self.address)
        await asyncio.wait(
            [serving, asyncio.create_task(self._stop_wanted.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        await _shut_down(gate, catalog, pool, fleet, events, settings.shutdown_ms / 1000)
        server.should_exit = True
        await serving
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await context.rates.close()
        request_log.close()
        probe.close()
        log.info("stopped")

    async def _follow(self, events: Events, application: Application) -> None:
        """What has to know that something happened: the tray, and what is remembered of requests."""
        queue = events.subscribe()
        while True:
            event = await queue.get()
            if event is not None and event.kind == "model":
                application.short.forget()  # it may have a rate now, or no more
            self.changed.set()


async def _call(work: Callable[[], T]) -> T:
    return work()


def _server_config(application: Application, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        loop="none",
        http=bounded(settings.max_connections),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=_FLUSH_S,
    )


async def _shut_down(
    gate: Gate, catalog: Catalog, pool: WorkPool, fleet: Fleet, events: Events, grace_s: float
) -> None:
    """New requests get 503, running ones may finish, then the engine ends; all of it bounded."""
    gate.close()
    catalog.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await gate.drained()
            await pool.drained()
    pool.close()
    await fleet.stop(_ENGINE_S)
    events.close()


async def _tell_ready(catalog: Catalog, events: Events) -> None:
    """One line when all that must be loaded is warm for the first time."""
    started, queue = time.monotonic(), events.subscribe()
    while not catalog.ready():
        await queue.get()
    events.unsubscribe(queue)
    ready = sum(catalog.model_ready(name) for name in catalog.models)
    log.info("ready", models=ready, of=len(catalog.models), seconds=round(time.monotonic() - started, 1))


async def _watch(folder: Path, catalog: Catalog) -> None:
    """Look at the folders once, and again whenever something in the user's own changes."""
    while True:
        try:
            seen = _made(folder)
            await catalog.rescan()
            changes = watchfiles.awatch(
                folder, debounce=800, step=200, ignore_permission_denied=True, yield_on_timeout=True
            )
            async with contextlib.aclosing(changes):
                async for change in changes:
                    if not change and _stamp(folder) != seen:
                        break  # it changed, and the watch did not tell: it is on a folder that is gone, or was late
                    if change:
                        seen = _stamp(folder)
                        await catalog.rescan()
        except OSError as error:
            log.warning("the models folder cannot be watched", reason=error.strerror)
            await catalog.rescan()
            await asyncio.sleep(5)  # the system has no watches left, or the folder no place: a slow second way


def _made(folder: Path) -> tuple[int, int, int] | None:
    folder.mkdir(parents=True, exist_ok=True)
    return _stamp(folder)


def _stamp(folder: Path) -> tuple[int, int, int] | None:
    """Changes with what lies in the folder, and with the folder itself.

    The number alone does not tell one folder from its successor: file systems use it again.
    """
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
