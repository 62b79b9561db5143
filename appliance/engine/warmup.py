"""The first runs of a loaded model: they make it fast, and they prove whether its requests may be merged.

A file can only *look* as if its first axis were a batch. So two different random items are run alone and together:
only if the batch gives each what it got alone are requests ever merged. (Child side.)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType

import msgspec
import numpy as np

from appliance.backends.base import Metered, Session
from appliance.engine.batch_speed import good_batch
from appliance.engine.merge import Padding
from appliance.engine.messages import CostPoint, Known
from appliance.engine.meter import peak_over
from appliance.errors import ApplianceError, ModelLoadError
from appliance.models.padding import combinations, with_lengths
from appliance.models.spec import Pad, TensorSpec, Warmup
from appliance.models.tensors import Array, count, numpy_dtype

_TOLERANCE = {"FP16": 2e-2, "BF16": 6e-2, "FP32": 2e-3, "FP64": 1e-6}
MAX_ELEMENTS = 1 << 26
NO_PADS: Mapping[str, Pad] = MappingProxyType({})

Shapes = Mapping[str, Sequence[int]]


class Warmed(msgspec.Struct, frozen=True):
    """``max_batch``: 0 if requests must not be merged. ``notes``: what a person should know. ``costs``: what the
    runs took of the device's memory beyond what the loaded model held, in bytes. ``held``: what they left taken.
    ``good_batch``: see ``ModelSpec``."""

    max_batch: int
    notes: tuple[str, ...]
    costs: tuple[CostPoint, ...] = ()
    held: int = 0
    good_batch: int = 0


def shape_for(spec: TensorSpec, batch: int, shapes: Mapping[str, Sequence[int]], batched: bool) -> tuple[int, ...]:
    """The warm-up's shape: as configured, else the spec's with 1 for dynamic axes; ``batch`` first if batched."""
    shape = list(shapes.get(spec.name) or [1 if d < 0 else d for d in spec.shape])
    if batched and shape:
        shape[0] = batch
    return tuple(shape)


def sample(spec: TensorSpec, shape: Sequence[int], seed: int) -> Array:
    """Random values that most models accept: floats in 0…1, integers 0 or 1, short texts."""
    random = np.random.default_rng(seed)
    if spec.datatype == "BYTES":
        texts = np.empty(int(np.prod(shape)), dtype=object)
        texts[:] = [b"%d" % value for value in random.integers(0, 10, texts.size)]
        return texts.reshape(tuple(shape))
    if spec.datatype == "BF16":
        # The upper half of a float32 is its bfloat16.
        return (random.random(shape, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    dtype = numpy_dtype(spec.datatype)
    if dtype.kind == "f":
        return random.random(shape, dtype=np.float32).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


class _Runs:
    """The warm-up's runs of one session, and what each took. ``used``: see ``warm_up``."""

    def __init__(self, session: Session, shapes: Sequence[Shapes], batched: bool, used: Callable[[], int]) -> None:
        self._session = session
        self._shapes = shapes
        self._batched = batched
        self._used = used
        self._before = used()
        self._peaks: dict[int, dict[int, int]] = {}
        self._names = [t.name for t in session.opened.outputs]

    def run(self, batch: int, *seeds: int, at: int = 0) -> list[Array]:
        """A batch of one random item a seed, or of ``batch`` items of one seed. ``at``: with which shapes."""
        inputs = self.inputs(batch // len(seeds), *seeds, at=at)
        peaks = self._peaks.setdefault(at, {})
        if isinstance(self._session, Metered):
            answer, taken = self._session.metered(lambda: self.outputs(inputs))
        else:
            answer, peak = peak_over(lambda: self.outputs(inputs), self._used)
            taken = peak - self._before
        peaks[batch] = max(peaks.get(batch, 0), taken)
        return answer

    def inputs(self, rows: int, *seeds: int, at: int = 0) -> dict[str, Array]:
        """Raises ModelLoadError where they have too many elements."""
        specs = self._session.opened.inputs
        shaped = {t.name: shape_for(t, rows, self._shapes[at], self._batched) for t in specs}
        if sum(count(s) for s in shaped.values()) > MAX_ELEMENTS:
            raise ModelLoadError("the warm-up's shapes have too many elements; set warmup.shapes")
        parts = [{t.name: sample(t, shaped[t.name], seed) for t in specs} for seed in seeds]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def outputs(self, inputs: Mapping[str, Array]) -> list[Array]:
        return self._session.run(inputs, self._names, self._session.cancellation())

    def warmed(self, max_batch: int, *notes: str) -> Warmed:
        """The end of it. What was measured of filled-up shapes counts only where requests are merged."""
        points: list[CostPoint] = []
        for at, peaks in self._peaks.items():
            specs = self._session.opened.inputs
            shapes = {n: [shape_for(t, n, self._shapes[at], self._batched) for t in specs] for n in peaks}
            points += _costs(shapes, peaks, max_batch > 0)
        return Warmed(max_batch, notes, tuple(points), max(0, self._used() - self._before))


def warm_up(
    session: Session,
    config: Warmup,
    candidate: int,
    declared: bool,
    used: Callable[[], int] = lambda: 0,
    pads: Mapping[str, Pad] = NO_PADS,
) -> Warmed:
    """Run the model at batch 1, 2, 4 … and the largest, prove the batch axis, and measure what the runs take.

    ``candidate``: the most items of a merged run if the proof succeeds, 0 if the file has no batch axis;
    ``declared``: the operator's word, not a guess; ``used``: bytes that this process holds of the device now;
    ``pads``: each combination of their buckets is run at all of these sizes.
    Raises ModelLoadError when shapes that were configured fail.
    """
    batched = candidate > 0
    opened = session.opened
    check_shapes(opened.inputs, config)
    if not config.enabled:
        return Warmed(candidate if declared else 0, ("warm-up is switched off",))
    all_shapes = bucket_shapes(opened.inputs, config.shapes, pads if candidate > 1 else NO_PADS)
    runs = _Runs(session, all_shapes, batched, used)
    try:
        runs.run(1, 1)
    except ApplianceError as error:
        if config.shapes or isinstance(error, ModelLoadError):
            raise ModelLoadError(f"the warm-up failed: {error.message}") from None
        note = f"not warmed up, the guessed shapes do not suit it (set warmup.shapes): {error.message}"
        return Warmed(candidate if declared else 0, (note,))
    if candidate <= 1:
        return runs.warmed(0)
    try:
        fault = _batch_fault(opened.outputs, runs.run(1, 1), runs.run(1, 2), runs.run(2, 1, 2))
    except ApplianceError as error:
        fault = f"a batch of two fails: {error.message}"
    if fault:
        return runs.warmed(0, f"requests are never merged: {fault}")
    notes = list(padding_notes(session, pads, runs)) if pads else []
    size, failed, fault = _largest(runs, all_shapes, opened.inputs, candidate)
    if fault:
        notes.insert(0, f"at most {size} requests are merged, a batch of {failed} fails: {fault}")
    try:
        good = good_batch(lambda n: runs.outputs(runs.inputs(n, 3)), size)
    except ApplianceError:
        good = size  # it ran before, so it is no fault of the batch
    return msgspec.structs.replace(runs.warmed(size, *notes), good_batch=good)


def warm_again(
    session: Session,
    config: Warmup,
    candidate: int,
    known: Known,
    used: Callable[[], int] = lambda: 0,
    pads: Mapping[str, Pad] = NO_PADS,
) -> Warmed | None:
    """Only make the model fast: what it costs and whether it may be merged is known from an earlier warm-up.

    None when that cannot be so (another device, other bounds, a run that fails): then it is found out anew.
    """
    opened = session.opened
    if (
        (known.device, known.providers) != (opened.device, opened.providers)
        or known.max_batch > candidate
        or not config.enabled
    ):
        return None
    shapes = bucket_shapes(session.opened.inputs, config.shapes, pads if known.max_batch > 1 else NO_PADS)
    runs = _Runs(session, shapes, candidate > 0, used)
    try:
        for at in range(len(shapes)):
            for batch in sorted({1, max(1, known.max_batch)}):
                runs.outputs(runs.inputs(batch, 1, at=at))
    except ApplianceError:
        return None
    return Warmed(known.max_batch, known.notes, known.costs, runs.warmed(0).held, known.good_batch)


def bucket_shapes(inputs: Sequence[TensorSpec], shapes: Shapes, pads: Mapping[str, Pad]) -> list[Shapes]:
    """The shapes to warm up: one for each combination of buckets; those configured where there are no pads."""
    if not pads:
        return [shapes]
    base = {t.name: shape_for(t, 1, shapes, batched=False) for t in inputs}
    found = [with_lengths(pads, base, lengths) for lengths in combinations(pads)]
    return sorted(found, key=lambda one: sum(count(shape) for shape in one.values()))


def smallest(inputs: Sequence[TensorSpec], config: Warmup, pads: Mapping[str, Pad]) -> Warmup:
    """``config`` with the smallest shapes that are warmed up."""
    if not pads:
        return config
    (first, *_) = bucket_shapes(inputs, config.shapes, pads)
    return msgspec.structs.replace(config, shapes={name: list(shape) for name, shape in first.items()})


def padding_notes(session: Session, pads: Mapping[str, Pad], runs: _Runs) -> Iterator[str]:
    """What filling up changes: an item as it is, and the same filled up and cut back.

    The values are the operator's business, who declared it safe: a note tells of them. Raises ModelLoadError where
    the shapes are not what an item alone has, and where an output cannot be cut back.
    """
    opened = session.opened
    padding = Padding(pads, opened.inputs)
    names = [t.name for t in opened.outputs]
    full = runs.inputs(1, 1, at=0)
    lengths = {name: max(1, pad.buckets[0] - 1) for name, pad in pads.items()}
    shapes = with_lengths(pads, {name: array.shape for name, array in full.items()}, lengths)
    item = {name: array[tuple(map(slice, shapes[name]))] for name, array in full.items()}
    group = padding.filled([item])
    if group is None:  # an input that has no length of its own
        return
    try:
        cut = padding.cut(names, runs.outputs(group.batch), group.own[0], group.bucket)
    except ApplianceError as error:
        raise ModelLoadError(f"batching.pad: {error.message}") from None
    try:
        alone = runs.outputs(item)
    except ApplianceError:
        return  # it takes no other lengths: so it needs to be filled up
    for spec, a, b in zip(opened.outputs, alone, cut, strict=True):
        if a.shape != b.shape:
            raise ModelLoadError(
                f"batching.pad: output '{spec.name}' is {list(b.shape)} where the input was filled up, and "
                f"{list(a.shape)} without; name its axis in 'outputs'"
            )
        if not same(spec.datatype, a, b):
            yield f"output '{spec.name}' changes when its inputs are filled up (batching.pad declares that safe)"


def _largest(
    runs: _Runs, all_shapes: Sequence[Shapes], inputs: Sequence[TensorSpec], candidate: int
) -> tuple[int, int, str]:
    """(largest batch that runs with all shapes, the one that fails, why): 2 is proven with the first, then 4, 8 … up
    to ``candidate``. In order of size: an arena keeps what it took, so what is smaller must be measured before."""
    sizes = [*takewhile(lambda n: n < candidate, (1 << n for n in range(12))), candidate]
    elements = [sum(count(shape_for(t, 1, shapes, batched=True)) for t in inputs) for shapes in all_shapes]
    todo = [(elements[at] * n, at, n) for at in range(len(all_shapes)) for n in sizes if at or n > 2]
    largest, failed, fault = candidate, 0, ""
    for _, at, n in sorted(todo):
        if n > largest:
            continue
        try:
            runs.run(n, 3, at=at)
        except ApplianceError as error:
            if n == 1:
                shapes = ", ".join(f"{name} {list(shape)}" for name, shape in all_shapes[at].items())
                raise ModelLoadError(f"batching.pad: {shapes} fails: {error.message}") from None
            largest, failed, fault = max(s for s in sizes if s < n), n, error.message
    return largest, failed, fault


def _costs(
    shapes: Mapping[int, Sequence[tuple[int, ...]]], peaks: Mapping[int, int], batched: bool
) -> tuple[CostPoint, ...]:
    """One point a batch size; a bigger batch never costs less than a smaller one (arenas keep what they took)."""
    points, highest = [], 0
    for rows in sorted(peaks):
        highest = max(highest, peaks[rows])
        bucket = tuple(shape[1:] if batched else shape for shape in shapes[rows])
        points.append(CostPoint(bucket, rows if batched else 1, highest))
    return tuple(points)


def check_shapes(inputs: Sequence[TensorSpec], config: Warmup) -> None:
    """Raises ModelLoadError for configured shapes that are not the model's."""
    unknown = [name for name in config.shapes if name not in {t.name for t in inputs}]
    if unknown:
        raise ModelLoadError(f"warmup.shapes: the model has no input '{unknown[0]}'")
    for spec in inputs:
        _check_shape(spec, config.shapes.get(spec.name))


def _check_shape(spec: TensorSpec, shape: Sequence[int] | None) -> None:
    if shape is None:
        return
    fits = len(shape) == len(spec.shape) and all(
        n >= 0 and want in (-1, n) for n, want in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        raise ModelLoadError(f"warmup.shapes: {list(shape)} does not fit input '{spec.name}' {spec.describe()}")


def _batch_fault(
    outputs: Sequence[TensorSpec], one: Sequence[Array], two: Sequence[Array], both: Sequence[Array]
) -> str | None:
    """Why a batch of two is not the same as two alone, or None when it is."""
    for spec, a, b, ab in zip(outputs, one, two, both, strict=True):
        if a.ndim == 0 or ab.ndim == 0 or a.shape[0] != 1 or ab.shape[0] != 2 or ab.shape[1:] != a.shape[1:]:
            return f"output '{spec.name}' loses the first axis ({list(a.shape)} alone, {list(ab.shape)} for two)"
        for alone, together in ((a[0], ab[0]), (b[0], ab[1])):
            if not same(spec.datatype, alone, together):
                return f"output '{spec.name}' of an item changes with its neighbours"
    return None


def same(datatype: str, alone: Array, together: Array) -> bool:
    """Whether two arrays of one shape are the same within what the datatype can tell apart."""
    if datatype not in _TOLERANCE:
        return bool(np.array_equal(alone, together))
    if datatype == "BF16":
        alone, together = ((a.astype(np.uint32) << 16).view(np.float32) for a in (alone, together))
    tolerance = _TOLERANCE[datatype]
    scale = float(np.max(np.abs(alone), initial=0.0, where=np.isfinite(alone)))
    return bool(np.allclose(alone, together, rtol=tolerance, atol=tolerance * scale, equal_nan=True))
