"""Lanes: the threads of the engine process that run a loaded model's batches. (Child side.)"""

import queue
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import structlog

from appliance.backends.base import Cancellation, Session
from appliance.engine.messages import (
    Chunk,
    End,
    Failed,
    ItemFailure,
    ItemOutputs,
    Result,
    Run,
    ToHost,
    attach,
    buffers,
    describe,
)
from appliance.errors import ApplianceError, Cancelled
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Array, Buffer, Tensor, from_array, to_array

log = structlog.get_logger("lanes")

Send = Callable[[ToHost, Sequence[Buffer]], None]
_LINGER_S = 60.0


class _Job:
    """A run that waits for a lane or is in one."""

    def __init__(self, message: Run, payload: memoryview, handle: Cancellation) -> None:
        self.message = message
        self.payload = payload
        self.handle = handle


class LoadedModel:
    """One loaded copy of a model, with up to ``instances`` lanes. Threads start when there is work and end
    after a minute without, so that a thousand idle models cost no threads."""

    def __init__(self, spec: ModelSpec, session: Session, send: Send, linger_s: float = _LINGER_S) -> None:
        self.spec = spec
        self._linger_s = linger_s
        self._session = session
        self._send = send
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._lanes = 0
        self._idle = 0
        self._open: dict[int, _Job] = {}
        self._closing = False

    @property
    def busy(self) -> int:
        return len(self._open)

    def submit(self, message: Run, payload: memoryview) -> None:
        """Queue a run for the next free lane."""
        job = _Job(message, payload, self._session.cancellation())
        with self._lock:
            if self._closing:
                self._send(Failed("run", message.id, "model_not_found", "the model is being unloaded"), ())
                return
            self._open[message.id] = job
            if self._idle < len(self._open) and self._lanes < self.spec.config.instances:
                self._lanes += 1
                threading.Thread(target=self._lane, name=f"lane {self.spec.name}", daemon=True).start()
            # Inside the lock: a lane that ends after its linger must see the job or not be counted on.
            self._jobs.put(job)

    def cancel(self, run_id: int) -> None:
        """End a run early where the backend can; unknown runs are ignored (already answered)."""
        with self._lock:
            job = self._open.get(run_id)
        if job:
            job.handle.cancel()

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
            try:
                self._run(job)
            finally:
                with self._lock:
                    self._open.pop(job.message.id, None)

    def _run(self, job: _Job) -> None:
        message, started = job.message, time.perf_counter_ns()
        try:
            items, at = [], 0
            for metas in message.items:
                tensors, at = attach(metas, job.payload, at)
                items.append(tensors)
            if message.stream:
                self._stream(job, items[0], started)
                return
            results, run_ns = self._batch(items, message.outputs, job.handle)
        except ApplianceError as error:
            self._send(Failed("run", message.id, error.code, error.message), ())
            return
        except Exception as error:  # a lane must outlive any fault of one run
            log.exception("internal fault", model=self.spec.name)
            self._send(Failed("run", message.id, "model_error", f"{type(error).__name__} in the engine"), ())
            return
        answers = [t for r in results if not isinstance(r, ItemFailure) for t in r]
        described = tuple(r if isinstance(r, ItemFailure) else ItemOutputs(describe(r)) for r in results)
        total = time.perf_counter_ns() - started
        self._send(Result(message.id, described, run_ns, total), buffers(answers))

    def _stream(self, job: _Job, item: Sequence[Tensor], started: int) -> None:
        inputs = {t.name: to_array(t) for t in item}
        for arrays in self._session.stream(inputs, job.message.outputs, job.handle):
            tensors = self._tensors(job.message.outputs, arrays)
            self._send(Chunk(job.message.id, describe(tensors)), buffers(tensors))
        self._send(End(job.message.id, time.perf_counter_ns() - started), ())

    def _batch(
        self, items: Sequence[Sequence[Tensor]], outputs: Sequence[str], handle: Cancellation
    ) -> tuple[list[list[Tensor] | ItemFailure], int]:
        """Run the items as one batch; where that fails, or does not come apart again, each one alone."""
        arrays = [{t.name: to_array(t) for t in item} for item in items]
        started = time.perf_counter_ns()
        if len(arrays) == 1:
            found = self._session.run(arrays[0], outputs, handle)
            run_ns = time.perf_counter_ns() - started
            return [self._tensors(outputs, found)], run_ns
        sizes = [next(iter(item.values())).shape[0] for item in arrays]
        merged = {name: np.concatenate([item[name] for item in arrays]) for name in arrays[0]}
        try:
            found = self._session.run(merged, outputs, handle)
            split = all(a.ndim and a.shape[0] == sum(sizes) for a in found)
        except Cancelled:
            raise
        except ApplianceError:  # one item's fault, or too much memory for all of them at once
            split = False
        run_ns = time.perf_counter_ns() - started
        if not split:
            alone = [self._alone(item, outputs, handle) for item in arrays]
            return alone, time.perf_counter_ns() - started
        results: list[list[Tensor] | ItemFailure] = []
        at = 0
        for size in sizes:
            results.append(self._tensors(outputs, [a[at : at + size] for a in found]))
            at += size
        return results, run_ns

    def _alone(
        self, inputs: dict[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> list[Tensor] | ItemFailure:
        try:
            return self._tensors(outputs, self._session.run(inputs, outputs, handle))
        except ApplianceError as error:
            return ItemFailure(error.code, error.message)

    def _tensors(self, outputs: Sequence[str], arrays: Sequence[Array]) -> list[Tensor]:
        tensors = []
        for name, array in zip(outputs, arrays, strict=True):
            tensor = from_array(name, array)
            spec = self.spec.output(name)
            if spec is not None and spec.datatype == "BF16":
                tensor = Tensor(name, "BF16", tensor.shape, tensor.data)
            tensors.append(tensor)
        return tensors
