"""Whether a loaded copy still answers rightly: the check for values that are not finite, and the canary.

The canary is the warm-up's input. What it gave then is kept; when a run gave a value that is not finite, or ran out
of memory, the same input must give the same again. If it does not, the fault is the device's or the runtime's, not
the request's, and nothing more that this process says is to be trusted. (Child side.)
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from appliance.backends.base import Cancellation, Session
from appliance.engine.warmup import MAX_ELEMENTS, same, sample, shape_for
from appliance.errors import ApplianceError, Cancelled, InsufficientMemory
from appliance.models.spec import ModelConfig, TensorSpec
from appliance.models.tensors import FLOATS, Array, count

_SEED = 1  # the warm-up's first run has the same
_KEPT = 1 << 16  # elements of each output that are kept, from its beginning
_EVERY_S = 1.0  # a canary that has just passed need not run again
_NO_MEMORY = 3  # canaries in a row that found no memory: what is left of it is of no use

_EXPONENT = {"FP16": 0x7C00, "BF16": 0x7F80}


class Canary(msgspec.Struct, frozen=True):
    """The warm-up's input as shapes (its values come from a seed) and the beginning of each output it gave."""

    shapes: dict[str, tuple[int, ...]]
    outputs: list[tuple[tuple[int, ...], Array]]


class Health:
    """Of one loaded copy. ``finite``: names of the outputs that must be; ``notes``: what a person should know.

    ``due``: a run has given reason for doubt. Several lanes use it at once.
    """

    def __init__(
        self,
        session: Session,
        model: str = "",
        finite: frozenset[str] = frozenset(),
        canary: Canary | None = None,
        notes: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._model = model
        self._types = {t.name: t.datatype for t in session.opened.outputs if t.name in finite}
        self._canary = canary
        self._clock = clock
        self._lock = threading.Lock()
        self._passed: float | None = None
        self._no_memory = 0
        self._starved = 0.0
        self._verdict: str | None = None
        self.notes = notes
        self.due = False

    @property
    def finite(self) -> frozenset[str]:
        return frozenset(self._types)

    def fault(self, outputs: Sequence[str], arrays: Sequence[Array]) -> str | None:
        """The first output that must be finite and is not; None when all is well."""
        if self._types:
            for name, array in zip(outputs, arrays, strict=True):
                datatype = self._types.get(name)
                if datatype is not None and not is_finite(datatype, array):
                    return name
        return None

    def ran(self) -> None:
        """A run had the memory that it needed: there is some."""
        self._no_memory = 0

    @property
    def has_canary(self) -> bool:
        return self._canary is not None

    def doubt(self) -> None:
        """There is reason for doubt from outside of any run: also a canary that has just passed runs again."""
        self._passed = None
        self.due = True

    def renew(self) -> None:
        """A check was made before there was anything to doubt: the first doubt is looked into all the same."""
        self._passed = None

    def examine(self, handle: Cancellation) -> str | None:
        """Run the canary if there is doubt. Why the engine must not go on, or None (also when it was cancelled)."""
        with self._lock:
            if not self.due or self._canary is None or self._verdict:
                return self._verdict
            self.due = False
            if self._passed is not None and self._clock() - self._passed < _EVERY_S:
                return None
            try:
                found = _outcome(self._session, self._canary.shapes, handle)
            except Cancelled:
                self.due = True
                return None
            except InsufficientMemory:
                # This says nothing of how right answers are, and other lanes may give memory back.
                if not self._no_memory or self._clock() - self._starved >= _EVERY_S:  # many at once are one event
                    self._no_memory, self._starved = self._no_memory + 1, self._clock()
                if self._no_memory >= _NO_MEMORY:
                    self._verdict = f"model '{self._model}' has no memory left even for its warm-up's input"
                return self._verdict
            except Exception as error:  # noqa: BLE001 - whatever it is, it did not happen at warm-up
                self._verdict = f"the canary of model '{self._model}' fails: {error}"
                return self._verdict
            if name := _difference(self._session.opened.outputs, self._canary.outputs, found):
                self._verdict = (
                    f"the canary of model '{self._model}' gives another answer than at warm-up (output '{name}')"
                )
                return self._verdict
            self._passed, self._no_memory = self._clock(), 0
            return None


def watch(session: Session, model: str, config: ModelConfig, batched: bool) -> Health:
    """Look at a session that is warm: which outputs are finite, and whether it can have a canary.

    ``batched``: the first axis is a batch. Without a warm-up, or where the model does not give the same twice,
    there is no canary.
    """
    floats = [t.name for t in session.opened.outputs if t.datatype in FLOATS]
    declared = frozenset(floats if config.finite else ())
    opened = session.opened
    shapes = {t.name: shape_for(t, 1, config.warmup.shapes, batched) for t in opened.inputs}
    if not config.warmup.enabled or sum(count(s) for s in shapes.values()) > MAX_ELEMENTS:
        return Health(session, model, declared)
    try:
        first = _outcome(session, shapes, session.cancellation())
        second = _outcome(session, shapes, session.cancellation())
    except ApplianceError:
        return Health(session, model, declared)  # the warm-up has told of it
    notes: tuple[str, ...] = ()
    finite = declared
    if config.finite is not False:
        good = {t.name for t, a in zip(opened.outputs, first, strict=True) if is_finite(t.datatype, a)}
        odd = sorted(declared - good)
        finite = declared or frozenset(good.intersection(floats))
        notes = (f"finite = true, but at warm-up output '{odd[0]}' is not",) if odd else ()
    kept = [(a.shape, a.reshape(-1)[:_KEPT].copy()) for a in first]
    steady = _difference(opened.outputs, kept, second) is None
    return Health(session, model, finite, Canary(shapes, kept) if steady else None, notes)


def is_finite(datatype: str, array: Array) -> bool:
    """False if an array of this datatype (BF16: its bits) holds a NaN or an infinity; True for what has neither."""
    if mask := _EXPONENT.get(datatype):
        # All ones in the exponent. For 16 bits this is ten times as fast as numpy's own test.
        bits = array.view(np.uint16)
        return not bool(((bits & mask) == mask).any())
    return datatype not in FLOATS or bool(np.isfinite(array).all())


def _outcome(session: Session, shapes: Mapping[str, tuple[int, ...]], handle: Cancellation) -> list[Array]:
    inputs = {t.name: sample(t, shapes[t.name], _SEED) for t in session.opened.inputs}
    return session.run(inputs, [t.name for t in session.opened.outputs], handle)


def _difference(
    specs: Sequence[TensorSpec], kept: Sequence[tuple[tuple[int, ...], Array]], found: Sequence[Array]
) -> str | None:
    """The name of the first output that is not as it was."""
    for spec, (shape, before), now in zip(specs, kept, found, strict=True):
        if now.shape != shape or not same(spec.datatype, before, now.reshape(-1)[:_KEPT]):
            return spec.name
    return None
