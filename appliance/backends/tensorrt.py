"""TensorRT through ONNX Runtime: what it is asked for, where its engines are kept, and why it does not run.

ONNX Runtime's Python package answers a TensorRT that does not start by making the session again, with the others'
names alone: their device and the bound of their memory are lost. So here a session is made with TensorRT and without
that second try, and where it fails the caller makes its own without TensorRT.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from appliance.backends import tensorrt_cache
from appliance.backends.base import DeviceLost, LoadRequest
from appliance.backends.tensorrt_cache import Kept, Stack
from appliance.errors import ModelLoadError
from appliance.models.inside import real_inside
from appliance.models.spec import TensorRTConfig, TensorSpec
from appliance.system import tensorrt
from appliance.system.cuda import Loader

log = structlog.get_logger("onnx")

PROVIDER = "TensorrtExecutionProvider"

_TOLD_EVERY_S = 10.0
BUILDING = "building the TensorRT engine (minutes, the first time)"
LOADING = "loading the TensorRT engine"

Make = Callable[[list[Any], bool], Any]
"""Makes a session of the model with these providers; whether ONNX Runtime may try again with others."""


class Attempt(msgspec.Struct, frozen=True):
    """``session``: one that has TensorRT, or None, and then ``reason``. ``rows``: the most items of a run that its
    engine takes; None: any. ``notes``: what a person should know."""

    session: Any = None
    reason: str | None = None
    rows: int | None = None
    notes: tuple[str, ...] = ()


class Model(msgspec.Struct, frozen=True):
    """``files``: all that the model consists of. ``inputs`` finds out what it takes, and whether the file looks as if
    the first axis of all were a batch. ``words`` says an error of ONNX Runtime; ``lost``: whether it means that the
    device is gone."""

    files: tuple[Path, ...]
    inputs: Callable[[], tuple[Sequence[TensorSpec], bool]]
    words: Callable[[Exception], str]
    lost: Callable[[Exception], bool]


class TensorRT:
    """For one engine process. ``cache``: where engines are kept, None: they are not. ``provider``: the library in
    ONNX Runtime's package, None: it has none. ``loader`` loads with these folders first; ``stack``: what is known of
    a device, without TensorRT's version."""

    def __init__(
        self,
        cache: Path | None,
        provider: Path | None,
        loader: Callable[[Sequence[Path]], Loader],
        stack: Callable[[str], Stack],
    ) -> None:
        self._cache, self._provider = cache, provider
        self._loader, self._stack = loader, stack
        self._lock = threading.Lock()
        self._major: int | None = None
        self._folders: Sequence[Path] = ()
        self._tried = False
        self._reason: str | None = None

    def open(self, request: LoadRequest, model: Model, index: int, rest: list[Any], make: Make) -> Attempt:
        """A session of TensorRT on ``cuda:index`` with ``rest`` for what it does not take. Raises DeviceLost, and
        ModelLoadError for a wrong ``calibration_table``."""
        table = _table(request)
        reason = self._libraries()
        if reason is not None:
            return Attempt(reason=reason)
        notes: list[str] = []
        stack = self._known(f"cuda:{index}", notes)
        try:
            plans = _plans(request, *model.inputs(), notes)
            for number, (shapes, rows) in enumerate(plans):
                config = request.config.tensorrt
                options = build_options(config, index) | shapes
                kept = self._kept(stack, request, model, options, table)
                options |= _room(config, request.memory_limit)
                if kept is not None and kept.refused and number + 1 < len(plans):
                    continue
                session, reason = self._try(request, model, options, kept, table, rest, make)
                if reason is None:
                    return Attempt(session=session, rows=rows, notes=tuple(notes))
                if kept is not None and number + 1 < len(plans) and "profile" in reason:
                    kept.refuse()
        except OSError as error:
            reason = f"its files cannot be read or kept: {error.strerror or type(error).__name__}"
        return Attempt(reason=reason)

    def _libraries(self) -> str | None:
        """Load TensorRT once; why it cannot be had, or None."""
        with self._lock:
            if not self._tried:
                self._tried, self._reason = True, self._look()
            return self._reason

    def _look(self) -> str | None:
        if self._provider is None:
            return "this build of ONNX Runtime has no TensorRT"
        self._major = tensorrt.wanted_major(self._provider)
        if self._major is None:
            return "ONNX Runtime's TensorRT provider does not say which version it needs"
        self._folders = tensorrt.folders(self._major)
        return tensorrt.load(self._loader(self._folders), self._major)

    def _known(self, device: str, notes: list[str]) -> Stack | None:
        """What engines have to fit to; None where they are not kept."""
        if self._cache is None or self._major is None:
            return None
        found = self._stack(device)
        version = tensorrt.version(self._loader(()).windows, self._major, folder=next(iter(self._folders), None))
        stack = msgspec.structs.replace(found, tensorrt=version)
        if unknown := stack.unknown():
            notes.append(f"TensorRT's engine is not kept: unknown here: {', '.join(unknown)}")
            return None
        return stack

    def _kept(
        self,
        stack: Stack | None,
        request: LoadRequest,
        model: Model,
        options: Mapping[str, object],
        table: Path | None,
    ) -> Kept | None:
        if self._cache is None or stack is None:
            return None
        files = [*model.files, *([table] if table else [])]
        return Kept(self._cache, stack, tensorrt_cache.model_key(request.model, files, options))

    def _try(
        self,
        request: LoadRequest,
        model: Model,
        options: dict[str, object],
        kept: Kept | None,
        table: Path | None,
        rest: list[Any],
        make: Make,
    ) -> tuple[Any, str | None]:
        """(session, why there is none). A kept engine that does not load is built anew, once."""
        known = kept is not None and kept.begin()
        while True:
            if kept is not None:
                options = options | keep_options(kept, request.config.tensorrt)
                if table is not None:
                    shutil.copyfile(table, kept.folder / table.name)
            try:
                with _told(request, LOADING if known else BUILDING):
                    session = make([(PROVIDER, options), *rest], False)
            except Exception as error:  # noqa: BLE001 - the runtime raises its own unrelated types
                if model.lost(error):
                    raise DeviceLost(model.words(error)) from None
                if kept is None or not known:
                    return None, f"it did not build an engine: {model.words(error)}"
                log.warning("a kept TensorRT engine does not load", model=request.model, reason=model.words(error))
                kept.discard()
                known = kept.begin()
                continue
            if kept is not None:
                kept.commit()
            return session, None


def build_options(config: TensorRTConfig, index: int) -> dict[str, object]:
    """ONNX Runtime's options that decide about the engine (its documentation of the TensorRT execution provider)."""
    options: dict[str, object] = {
        "device_id": index,
        "trt_fp16_enable": config.fp16,
        "trt_int8_enable": config.int8,
    }
    if config.int8 and config.calibration_table is not None:
        options["trt_int8_calibration_table_name"] = config.calibration_table
        options["trt_int8_use_native_calibration_table"] = False
    if config.optimization_level is not None:
        options["trt_builder_optimization_level"] = config.optimization_level
    if config.workspace_bytes is not None:
        options["trt_max_workspace_size"] = config.workspace_bytes
    return options


def _room(config: TensorRTConfig, memory_limit: int | None) -> dict[str, object]:
    """The bound by what is free now. It is another one at each load, so it must not decide which engine fits."""
    sizes = [size for size in (config.workspace_bytes, memory_limit) if size]
    return {"trt_max_workspace_size": min(sizes)} if sizes else {}


def keep_options(kept: Kept, config: TensorRTConfig) -> dict[str, object]:
    """Those that say where it is kept."""
    options: dict[str, object] = {"trt_engine_cache_enable": True, "trt_engine_cache_path": str(kept.folder)}
    if config.timing_cache:
        options |= {"trt_timing_cache_enable": True, "trt_timing_cache_path": str(kept.timings)}
    return options


def profile(inputs: Sequence[TensorSpec], rows: int) -> dict[str, object] | None:
    """The options for one engine that takes 1 to ``rows`` items; None where it cannot be one: other axes are free
    too, or none is, or requests are not merged. Its code is the fastest for ``rows``."""
    free = [t for t in inputs if -1 in t.shape]
    if not free or rows < 2 or any(t.shape[0] != -1 or t.shape.count(-1) > 1 for t in free):
        return None

    def shapes(count: int) -> str:
        return ",".join(f"{t.name}:{'x'.join(map(str, (count, *t.shape[1:])))}" for t in free)

    return {
        "trt_profile_min_shapes": shapes(1),
        "trt_profile_opt_shapes": shapes(rows),
        "trt_profile_max_shapes": shapes(rows),
    }


def _plans(
    request: LoadRequest, inputs: Sequence[TensorSpec], batch_axis: bool, notes: list[str]
) -> list[tuple[dict[str, object], int | None]]:
    """What to try, the best first: (options, most items). An engine for all batches at once cannot be built where
    TensorRT takes only parts of the graph; then it is built for the shapes that come, again for each that is new."""
    rows = request.config.batching.max or (request.max_batch if batch_axis else 0)
    whole = profile(inputs, rows)
    free = next((t for t in inputs if -1 in t.shape), None)
    if free is not None and whole is None:
        notes.append(
            f"input '{free.name}' {free.describe()} has free axes: TensorRT builds its engine again for each shape "
            "that is new"
        )
    return [*([(whole, rows)] if whole is not None else []), ({}, None)]


def _table(request: LoadRequest) -> Path | None:
    """The file with the ranges for int8, which lies beside the model. Raises ModelLoadError."""
    config = request.config.tensorrt
    if not config.int8 or config.calibration_table is None:
        return None
    table = request.path.parent / config.calibration_table
    if not table.is_file() or real_inside(table, request.root) is None:
        raise ModelLoadError(f"tensorrt.calibration_table: there is no file {table.name} beside the model")
    return table


@contextlib.contextmanager
def _told(request: LoadRequest, words: str) -> Iterator[None]:
    """Say what goes on, and again as long as it does."""
    log.info(words, model=request.model)
    request.progress(words)
    done, started = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(_TOLD_EVERY_S):
            request.progress(f"{words}: {time.monotonic() - started:.0f} s so far")

    telling = threading.Thread(target=tell, name="tensorrt-progress", daemon=True)
    telling.start()
    try:
        yield
    finally:
        done.set()
        telling.join()
        log.info("TensorRT is done", model=request.model, s=round(time.monotonic() - started, 1))
