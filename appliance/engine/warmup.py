"""The first runs of a loaded model: they make it fast, and they prove whether its requests may be merged.

A file can only *look* as if its first axis were a batch. So two different random items are run alone and together:
only if the batch gives each what it got alone are requests ever merged. (Child side.)
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from appliance.backends.base import Session
from appliance.engine.messages import CostPoint, Known
from appliance.engine.meter import peak_over
from appliance.errors import ApplianceError, ModelLoadError
from appliance.models.spec import TensorSpec, Warmup
from appliance.models.tensors import Array, count, numpy_dtype

_TOLERANCE = {"FP16": 2e-2, "BF16": 6e-2, "FP32": 2e-3, "FP64": 1e-6}
MAX_ELEMENTS = 1 << 26


class Warmed(msgspec.Struct, frozen=True):
    """``max_batch``: 0 if requests must not be merged. ``notes``: what a person should know. ``costs``: what the
    runs took of the device's memory beyond what the loaded model held, in bytes."""

    max_batch: int
    notes: tuple[str, ...]
    costs: tuple[CostPoint, ...] = ()


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


def warm_up(
    session: Session, config: Warmup, candidate: int, declared: bool, used: Callable[[], int] = lambda: 0
) -> Warmed:
    """Run the model at batch 1, 2, 4 … and the largest, prove the batch axis, and measure what the runs take.

    ``candidate``: the most items of a merged run if the proof succeeds, 0 if the file has no batch axis;
    ``declared``: the operator's word, not a guess; ``used``: bytes that this process holds of the device now.
    Raises ModelLoadError when shapes that were configured fail.
    """
    batched = candidate > 0
    opened = session.opened
    unknown = [name for name in config.shapes if name not in {t.name for t in opened.inputs}]
    if unknown:
        raise ModelLoadError(f"warmup.shapes: the model has no input '{unknown[0]}'")
    for spec in opened.inputs:
        _check_shape(spec, config.shapes.get(spec.name))
    if not config.enabled:
        return Warmed(candidate if declared else 0, ("warm-up is switched off",))

    before = used()
    peaks: dict[int, int] = {}

    def run(batch: int, *seeds: int) -> list[Array]:
        shaped = {t.name: shape_for(t, batch // len(seeds), config.shapes, batched) for t in opened.inputs}
        if sum(count(s) for s in shaped.values()) > MAX_ELEMENTS:
            raise ModelLoadError("the warm-up's shapes have too many elements; set warmup.shapes")
        parts = [{t.name: sample(t, shaped[t.name], seed) for t in opened.inputs} for seed in seeds]
        names = [t.name for t in opened.outputs]
        inputs = parts[0]
        if len(parts) > 1:
            inputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        answer, peak = peak_over(lambda: session.run(inputs, names, session.cancellation()), used)
        peaks[batch] = max(peaks.get(batch, 0), peak - before)
        return answer

    def warmed(max_batch: int, *notes: str) -> Warmed:
        shapes = {n: [shape_for(t, n, config.shapes, batched) for t in opened.inputs] for n in peaks}
        return Warmed(max_batch, notes, _costs(shapes, peaks, max_batch > 0))

    try:
        run(1, 1)
    except ApplianceError as error:
        if config.shapes or isinstance(error, ModelLoadError):
            raise ModelLoadError(f"the warm-up failed: {error.message}") from None
        note = f"not warmed up, the guessed shapes do not suit it (set warmup.shapes): {error.message}"
        return Warmed(candidate if declared else 0, (note,))
    if not batched or candidate == 1:
        return warmed(0)
    try:
        fault = _batch_fault(opened.outputs, run(1, 1), run(1, 2), run(2, 1, 2))
    except ApplianceError as error:
        fault = f"a batch of two fails: {error.message}"
    if fault:
        return warmed(0, f"requests are never merged: {fault}")
    size, fault = _largest(run, candidate)
    return warmed(
        size, *([f"at most {size} requests are merged, a batch of {candidate} fails: {fault}"] * bool(fault))
    )


def warm_again(session: Session, config: Warmup, candidate: int, known: Known) -> Warmed | None:
    """Only make the model fast: what it costs and whether it may be merged is known from an earlier warm-up.

    None when that cannot be so (another device, other bounds, a run that fails): then it is found out anew.
    """
    if known.device != session.opened.device or known.max_batch > candidate or not config.enabled:
        return None
    names = [t.name for t in session.opened.outputs]
    try:
        for batch in sorted({1, max(1, known.max_batch)}):
            shapes = {t.name: shape_for(t, batch, config.shapes, candidate > 0) for t in session.opened.inputs}
            inputs = {t.name: sample(t, shapes[t.name], 1) for t in session.opened.inputs}
            session.run(inputs, names, session.cancellation())
    except ApplianceError:
        return None
    return Warmed(known.max_batch, known.notes, known.costs)


def _largest(run: Callable[..., object], candidate: int) -> tuple[int, str]:
    """(largest batch that runs, why not the next one): 2 is proven, then 4, 8 … up to ``candidate``."""
    largest, size = min(2, candidate), 4
    while largest < candidate:
        size = min(size, candidate)
        try:
            run(size, 3)
        except ApplianceError as error:
            return largest, error.message
        largest, size = size, size * 2
    return largest, ""


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
