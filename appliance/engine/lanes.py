"""Lanes: the threads of the engine process that run a loaded model's batches. (Child side.)"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

import structlog

from appliance.backends.base import Cancellation, DeviceLost, Session
from appliance.engine import merge
from appliance.engine.canary import Health
from appliance.engine.messages import (
    Chunk,
    End,
    Failed,
    ItemFailure,
    ItemOutputs,
    Result,
    Run,
    ToHost,
    Unfit,
    attach,
    buffers,
    describe,
)
from appliance.errors import ApplianceError, Cancelled, InsufficientMemory, InvalidOutput
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Array, Buffer, Tensor, from_array, to_array

log = structlog.get_logger("lanes")

Send = Callable[[ToHost, Sequence[Buffer]], None]
_LINGER_S = 60.0
_QUICK_NS = 500_000
_UNKNOWN_NS = 1_000_000_000
_CHECK = -1  # stands for a check among the runs


class _Job:
    """A run that waits for a lane or is in one."""

    def __init__(self, message: Run, payload: memoryview, handle: Cancellation) -> None:
        self.message = message
        self.payload = payload
        self.handle = handle

    def arrays(self) -> list[dict[str, Array]]:
        """Each item's inputs. Raises ValueError when the payload is too short."""
        items, at = [], 0
        for metas in self.message.items:
            tensors, at = attach(metas, self.payload, at)
            items.append({t.name: to_array(t) for t in tensors})
        return items


class LoadedModel:
    """One loaded copy of a model, with up to ``instances`` lanes. Threads start when there is work and end
    after a minute without, so that a thousand idle models cost no threads."""

    def __init__(
        self, spec: ModelSpec, session: Session, send: Send, linger_s: float = _LINGER_S, health: Health | None = None
    ) -> None:
        self.spec = spec
        self._linger_s = linger_s
        self._session = session
        self._health = health or Health(session)
        self._send = send
        self._jobs: queue.SimpleQueue[_Job | threading.Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._lanes = 0
        self._idle = 0
        self._open: dict[int, _Job] = {}
        self._closing = False
        self._raw = frozenset(t.name for t in spec.outputs if t.datatype == "BF16")
        self._expected_ns = _UNKNOWN_NS
        # A lane may be about to run when another thread does; with several lanes only lanes run.
        self._turn = threading.Lock() if spec.lanes == 1 else contextlib.nullcontext()

    @property
    def quick(self) -> bool:
        """A run is over sooner than it is handed to a lane: the caller may do it itself (``run_here``)."""
        return self._expected_ns < _QUICK_NS and not self._open and self.spec.lanes == 1

    @property
    def busy(self) -> int:
        return len(self._open)

    def run_here(self, message: Run, payload: memoryview) -> None:
        """Run it in the calling thread."""
        job = _Job(message, payload, self._session.cancellation())
        with self._lock:
            if self._refused(job):
                return
            self._open[message.id] = job
        self._in_turn(job)

    def submit(self, message: Run, payload: memoryview) -> None:
        """Queue a run for the next free lane."""
        job = _Job(message, payload, self._session.cancellation())
        with self._lock:
            if self._refused(job):
                return
            self._open[message.id] = job
            if self._idle < len(self._open) and self._lanes < self.spec.lanes:
                self._start_lane()
            # Inside the lock: a lane that ends after its linger must see the job or not be counted on.
            self._jobs.put(job)

    def prime(self, within_s: float = 30.0) -> None:
        """Have a lane run the canary: with some runtimes a thread's first run is slow, and it should be no request's.
        Returns when that is done, or has taken too long."""
        if self.has_canary:
            primed = threading.Event()
            with self._lock:
                self._start_lane()
                self._jobs.put(primed)
            primed.wait(within_s)

    def _start_lane(self) -> None:
        self._lanes += 1
        threading.Thread(target=self._lane, name=f"lane {self.spec.name}", daemon=True).start()

    def cancel(self, run_id: int) -> None:
        """End a run early where the backend can; unknown runs are ignored (already answered)."""
        with self._lock:
            job = self._open.get(run_id)
        if job:
            job.handle.cancel()

    def check(self) -> str | None:
        """Run the canary now, whatever is thought of it. Why the engine must not go on, or None."""
        job = _Job(Run(_CHECK, 0, (), ()), memoryview(b""), self._session.cancellation())
        with self._lock:
            if self._closing:
                return None
            self._open[_CHECK] = job  # so that it is waited for, and nothing runs in the caller's thread
        try:
            with self._turn:
                self._health.doubt()
                return self._health.examine(job.handle)
        finally:
            with self._lock:
                self._open.pop(_CHECK, None)

    @property
    def has_canary(self) -> bool:
        return self._health.has_canary

    def close(self) -> None:
        """Wait for the runs in flight, then give everything back."""
        with self._lock:
            self._closing = True
        while self.busy:
            time.sleep(0.01)
        self._session.close()

    def _lane(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                job = self._jobs.get(timeout=self._linger_s)
            except queue.Empty:
                with self._lock:
                    self._idle -= 1
                    if self._jobs.empty():
                        self._lanes -= 1
                        return
                continue
            with self._lock:
                self._idle -= 1
            if isinstance(job, threading.Event):
                self.check()
                self._health.renew()
                job.set()
            else:
                self._in_turn(job)

    def _refused(self, job: _Job) -> bool:
        if self._closing:
            self._send(Failed("run", job.message.id, "model_not_found", "the model is being unloaded"), ())
        return self._closing

    def _in_turn(self, job: _Job) -> None:
        started = time.perf_counter_ns()
        try:
            with self._turn:
                self._run(job)
        finally:
            with self._lock:
                self._open.pop(job.message.id, None)
                # Slow to believe that it is quick, and quick to believe that it is slow.
                took = time.perf_counter_ns() - started
                self._expected_ns = max(took, self._expected_ns + (took - self._expected_ns) // 4)

    def _run(self, job: _Job) -> None:
        answers: list[Tensor] = []
        try:
            reply, answers = self._reply(job)
        except ApplianceError as error:
            reply = Failed("run", job.message.id, error.code, error.message)
        except DeviceLost as error:
            log.error("the device is lost", model=self.spec.name, reason=str(error))
            reply = Unfit(f"the device of model '{self.spec.name}' is lost: {error}")
        except Exception as error:  # a lane must outlive any fault of one run
            log.exception("internal fault", model=self.spec.name)
            reply = Failed("run", job.message.id, "model_error", f"{type(error).__name__} in the engine")
        if self._health.due and not isinstance(reply, Unfit) and (words := self._health.examine(job.handle)):
            log.error("unfit", reason=words)
            reply, answers = Unfit(words), []  # the run gets its answer from the next engine
        self._send(reply, buffers(answers))

    def _reply(self, job: _Job) -> tuple[ToHost, list[Tensor]]:
        """Run it: what to send, and the tensors that follow. Raises ApplianceError."""
        message, started = job.message, time.perf_counter_ns()
        if message.stream:
            return self._stream(job, attach(message.items[0], job.payload)[0], started), []
        results, run_ns, ran_out = self._batch(job)
        answers = [t for r in results if not isinstance(r, ItemFailure) for t in r]
        described = tuple(r if isinstance(r, ItemFailure) else ItemOutputs(describe(r)) for r in results)
        return Result(message.id, described, run_ns, time.perf_counter_ns() - started, ran_out), answers

    def _stream(self, job: _Job, item: Sequence[Tensor], started: int) -> End:
        inputs = {t.name: to_array(t) for t in item}
        for arrays in self._session.stream(inputs, job.message.outputs, job.handle):
            tensors = self._checked(job.message.outputs, arrays)
            self._send(Chunk(job.message.id, describe(tensors)), buffers(tensors))
        return End(job.message.id, time.perf_counter_ns() - started)

    def _once(self, inputs: dict[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        try:
            found = self._session.run(inputs, outputs, handle)
        except InsufficientMemory:
            self._health.due = True
            raise
        self._health.ran()
        return found

    def _batch(self, job: _Job) -> tuple[list[list[Tensor] | ItemFailure], int, bool]:
        """Run the items as one batch; where that fails, or does not come apart again, each one alone."""
        outputs, handle = job.message.outputs, job.handle
        if len(job.message.items) == 1:
            (inputs,) = job.arrays()
            started = time.perf_counter_ns()
            found = self._once(inputs, outputs, handle)
            run_ns = time.perf_counter_ns() - started
            return [self._checked(outputs, found)], run_ns, False
        ran_out = False
        batch, sizes = merge.joined(job.message, job.payload) or merge.merged(job.arrays())
        started = time.perf_counter_ns()
        try:
            found = self._once(batch, outputs, handle)
            split = all(a.ndim and a.shape[0] == sum(sizes) for a in found)
        except Cancelled:
            raise
        except ApplianceError as error:  # one item's fault, or too much memory for all of them at once
            split, ran_out = False, isinstance(error, InsufficientMemory)
        run_ns = time.perf_counter_ns() - started
        if not split:
            alone = [self._alone(item, outputs, handle) for item in job.arrays()]
            return alone, time.perf_counter_ns() - started, ran_out
        if self._health.fault(outputs, found) is None:
            return list(merge.parted(outputs, self._raw, found, sizes)), run_ns, False
        results: list[list[Tensor] | ItemFailure] = []
        at = 0
        for size in sizes:
            results.append(self._item(outputs, [a[at : at + size] for a in found]))
            at += size
        return results, run_ns, False

    def _alone(
        self, inputs: dict[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> list[Tensor] | ItemFailure:
        try:
            return self._checked(outputs, self._once(inputs, outputs, handle))
        except ApplianceError as error:
            return ItemFailure(error.code, error.message)

    def _item(self, outputs: Sequence[str], arrays: Sequence[Array]) -> list[Tensor] | ItemFailure:
        try:
            return self._checked(outputs, arrays)
        except InvalidOutput as error:
            return ItemFailure(error.code, error.message)

    def _checked(self, outputs: Sequence[str], arrays: Sequence[Array]) -> list[Tensor]:
        """Raises InvalidOutput where an output must be finite and is not."""
        if name := self._health.fault(outputs, arrays):
            self._health.due = True
            raise InvalidOutput(f"output '{name}' is not finite (a NaN or an infinity)", param=name)
        return self._tensors(outputs, arrays)

    def _tensors(self, outputs: Sequence[str], arrays: Sequence[Array]) -> list[Tensor]:
        tensors = []
        for name, array in zip(outputs, arrays, strict=True):
            tensor = from_array(name, array)
            if name in self._raw:
                tensor = Tensor(name, "BF16", tensor.shape, tensor.data)
            tensors.append(tensor)
        return tensors
