"""Keeps one engine process alive: start, heartbeat, kill, restart with back-off. Host side, in the server's loop."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Literal, get_args

import msgspec
import psutil
import structlog

from appliance.engine.client import EngineClient, EngineDied
from appliance.engine.messages import Hello
from appliance.engine.pulse import Pulse
from appliance.system.processes import start_child

log = structlog.get_logger("supervisor")

EngineState = Literal["starting", "ready", "restarting", "stopped"]
Cause = Literal["crash", "hang", "unfit", "start", "asked"]
"""Why an engine is started again: it ended by itself; it did not answer, or a run did not end; it said that it is not
to be trusted; it did not start; a fresh one was wanted."""
_HELLO_S = 60.0
_FORGIVES_S = 2.0
_PING_S = 2.0
_NT_ERROR = 0xC0000000  # ntstatus.h: Windows ends a process that crashed with such a code
_NT_STATUS = {
    0xC0000005: ", access violation",
    0xC0000017: ", out of memory",
    0xC00000FD: ", stack overflow",
    0xC0000135: ", a DLL is missing",
    0xC0000142: ", a DLL could not start",
    0xC0000374: ", damaged heap",
    0xC0000409: ", aborted",
}


class Death(msgspec.Struct, frozen=True):
    """When (Unix seconds) and why an engine ended, and its exit code where the system told one."""

    at: float
    reason: str
    exit_code: int | None


def restart_delay(deaths_in_a_row: int) -> float:
    """Seconds to wait before the next start: 0 after the first death, then 1, 2, 4 … 30."""
    return 0.0 if deaths_in_a_row <= 1 else min(30.0, 2.0 ** min(deaths_in_a_row - 2, 5))


def count_death(before: int, up_s: float) -> int:
    """Deaths in a row with the newest, after ``before`` of them: every 2 s that this engine was up make up for one.

    So only an engine that dies soon after each start comes back later and later; one that served meanwhile is missed.
    """
    return max(0, before - int(up_s / _FORGIVES_S)) + 1


class Supervisor:
    """One engine process and its successors.

    ``on_up(client)`` is called when a started engine has said hello, ``on_down(reason)`` once when it is gone,
    ``on_wait()`` when the next start is waited for, or at hand, after an engine ended or did not start.
    ``run()`` returns after ``stop()``. Bounds: hello within 60 s; for the heartbeat see ``Pulse``.
    """

    def __init__(
        self,
        command: Sequence[str],
        log_file: Path,
        on_up: Callable[[EngineClient], None],
        on_down: Callable[[str], None],
        on_wait: Callable[[], None] = lambda: None,
        *,
        heartbeat_s: float = 10.0,
        load_s: float = 300.0,
    ) -> None:
        self._command = list(command)
        self._log_file = log_file
        self._on_up = on_up
        self._on_down = on_down
        self._on_wait = on_wait
        self._heartbeat_s = heartbeat_s
        self._load_s = load_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = asyncio.Event()
        self._kill_reason: str | None = None
        self._cause: Cause = "crash"
        self._up_at: float | None = None
        self.client: EngineClient | None = None
        self.state: EngineState = "starting"
        self.restarts = 0
        self.in_a_row = 0  # deaths, see ``count_death``
        self.causes: dict[Cause, int] = dict.fromkeys(get_args(Cause), 0)
        self.deaths: deque[Death] = deque(maxlen=20)
        self.hello: Hello | None = None
        self.next_start: float | None = None

    @property
    def pid(self) -> int | None:
        """The engine's process id, or None while there is none."""
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        """Start the engine again and again until ``stop``."""
        while not self._stopping.is_set():
            self._up_at = None
            reason = await self._one_life()
            if self._stopping.is_set():
                break
            up_s = time.monotonic() - self._up_at if self._up_at is not None else 0.0
            self.in_a_row = count_death(self.in_a_row, up_s)
            delay = restart_delay(self.in_a_row)
            self.state = "restarting"
            self.restarts += 1
            self.causes[self._cause] += 1
            log.warning("the engine is gone", reason=reason, restart_in_s=delay)
            self.next_start = time.time() + delay
            self._on_wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay) if delay else None
            self.next_start = None
        self.state = "stopped"

    def kill(self, reason: str, cause: Cause = "hang") -> None:
        """End the engine at once; it is started again. ``cause``: what the restart counts as."""
        if self._process is not None:
            self._kill_reason, self._cause = reason, cause
            self._process.kill()

    async def stop(self, grace_s: float = 1.0) -> None:
        """End the engine for good: asked first, killed after ``grace_s``."""
        self._stopping.set()
        process = self._process
        if self.client is not None:
            self.client.stop()
        if process is not None:
            try:
                await asyncio.to_thread(process.wait, grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)

    async def _one_life(self) -> str:
        """From start to death; returns the reason."""
        self._kill_reason, self._cause = None, "crash"
        closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        up = False

        def on_close(reason: str) -> None:
            self.client = None
            if up:
                self.state = "restarting"
                self._on_down(self._kill_reason or reason)
            if not closed.done():
                closed.set_result(reason)

        reason = ""
        client = EngineClient(on_close, lambda reason: self.kill(reason, "unfit"))
        try:
            await self._start(client)
            self.hello = await asyncio.wait_for(asyncio.shield(client.hello), _HELLO_S)
            up, self.client, self.state, self._up_at = True, client, "ready", time.monotonic()
            log.info("engine ready", pid=self.hello.pid, runtimes=self.hello.runtimes)
            self._on_up(client)
            reason = await self._watch(client, closed)
        except (OSError, EngineDied, TimeoutError, RuntimeError) as error:
            reason = f"the engine did not start: {error or type(error).__name__}"
            if not up:
                self._cause = "start"
        finally:
            code = await self._reap(client)
        if not self._stopping.is_set():
            reason = _reason(self._kill_reason or reason, code)
            self.deaths.append(Death(time.time(), reason, code))
        return reason

    async def _start(self, client: EngineClient) -> None:
        with self._output() as output:
            process, sock = await asyncio.to_thread(start_child, self._command, stderr=output)
        self._process = process
        await client.connect(sock)

    def _output(self) -> IO[bytes]:
        """Where the engine's words go; an engine without a log is better than none."""
        try:
            self._log_file.parent.mkdir(parents=True, exist_ok=True)
            return self._log_file.open("ab")
        except OSError as error:
            log.warning("the engine's log cannot be written", reason=error.strerror)
            return Path(os.devnull).open("ab")

    async def _watch(self, client: EngineClient, closed: "asyncio.Future[str]") -> str:
        """Heartbeats until the connection ends."""
        loop = asyncio.get_running_loop()
        client.last_pong = loop.time()
        pulse = Pulse(self._heartbeat_s, self._load_s)
        while True:
            client.ping()
            began = loop.time()
            wait = pulse.wait_s(began, client.last_pong, _PING_S)
            done, _ = await asyncio.wait({closed}, timeout=wait)
            if done:
                return closed.result()
            now = loop.time()
            if now - began > wait + 1:
                # It was this process that stood still, or the machine that slept: an answer may lie there unread,
                # and an engine that wakes up too has all its time.
                client.last_pong = max(client.last_pong, now)
                continue
            if fault := pulse.fault(now, client.last_pong, client.loading, self._used_s()):
                self.kill(fault)

    def _used_s(self) -> float | None:
        """Processor time of the engine so far, where the system tells it."""
        try:
            times = psutil.Process(self.pid).cpu_times() if self.pid else None
        except psutil.Error:
            return None
        return times.user + times.system if times else None

    async def _reap(self, client: EngineClient) -> int | None:
        client.close()
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return await asyncio.to_thread(process.wait, 2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return await asyncio.to_thread(process.wait)


def _reason(reason: str, code: int | None) -> str:
    if code is not None and code < 0:
        return f"{reason} (ended by signal {-code})"
    if code is not None and code >= _NT_ERROR:
        return f"{reason} (exit code 0x{code:08X}{_NT_STATUS.get(code, '')})"
    if code:
        return f"{reason} (exit code {code})"
    return reason
