"""ONNX's own test data as cases for this server, and which of them it is not expected to answer, with why.

Four sources. The ``onnx`` package brings nine whole networks without their weights (``light``), the folders
``simple`` and ``pytorch-*``, and the code that makes the newest single-operator cases (``made``). Debian's
``libonnx-testdata`` brings the single-operator cases of an older release as files (``node``).

``python -m tests.support.onnx_cases > docs/conformance.md`` writes the page that lists what is not answered.
"""

import ctypes
import json
import math
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper as nh

PACKAGE = Path(onnx.__file__).parent / "backend" / "test" / "data"
DEBIAN = Path("/usr/share/libonnx-testdata/data")

DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(bfloat16)": "BF16",
    "tensor(string)": "BYTES",
}
"""ONNX Runtime's name of a type → the protocol's. Written down here again, so that a test can find a mistake."""

LOAD_FAILS = "ONNX Runtime itself does not load the model"
NOT_TENSORS = "An input or output is a sequence, an optional or a map; the protocol carries tensors only"
NO_DATATYPE = "An input or output has a datatype that the protocol does not have"
RUN_FAILS = "ONNX Runtime itself fails to run the model"
WRONG = "ONNX Runtime itself gives another answer than the data"
NOT_FINITE = "JSON only: a value is NaN or infinite, which JSON cannot carry; binary data can"
REASONS = (NOT_TENSORS, NO_DATATYPE, NOT_FINITE, LOAD_FAILS, RUN_FAILS, WRONG)
NOT_SERVED = (LOAD_FAILS, NOT_TENSORS, NO_DATATYPE)
"""The reasons for which a model is not even loaded."""

Array = np.ndarray[Any, Any]
Data = tuple[list[Any], list[Any]]


class Case(msgspec.Struct, frozen=True):
    """One model with its data.

    ``sets``: folders of ``input_N.pb`` and ``output_N.pb``. ``data``: inputs and outputs themselves, by position.
    """

    title: str
    group: str
    model: bytes
    sets: tuple[Path, ...] = ()
    data: tuple[Data, ...] = ()
    rtol: float = 1e-3
    atol: float = 1e-7

    @property
    def name(self) -> str:
        """What the model is called in the models folder."""
        return f"{self.group}.{self.title}"


class Run(msgspec.Struct, frozen=True):
    """One run: named inputs, the outputs in the data, and those of plain ONNX Runtime, in the model's order."""

    inputs: dict[str, Array]
    expected: list[Array]
    plain: list[Array]


class Verdict(msgspec.Struct, frozen=True):
    """What plain ONNX Runtime makes of a case.

    ``binary``, ``json``: why there is to be no answer that way, or None. ``detail``: which type, which fault.
    ``inputs``, ``outputs``: name → the protocol's datatype, in the model's order.
    """

    case: Case
    binary: str | None = None
    json: str | None = None
    detail: str = ""
    runs: tuple[Run, ...] = ()
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}


def light_cases() -> list[Case]:
    """The nine whole networks of the ``onnx`` package, with the tolerances that its runner gives them.

    Their weights are constants, their input is a ramp from 0 to 1, as ONNX's runner makes it.
    """
    found = []
    for file in sorted((PACKAGE / "light").glob("*.onnx")):
        title = file.stem.removeprefix("light_")
        told = json.loads((PACKAGE / "real" / f"test_{title}" / "data.json").read_text())
        graph = onnx.load(file).graph
        weights = {weight.name for weight in graph.initializer}
        inputs = [
            _ramp([d.dim_value or 1 for d in entry.type.tensor_type.shape.dim])
            for entry in graph.input
            if entry.name not in weights
        ]
        outputs = [_read(file.with_name(f"{file.stem}_output_{n}.pb")) for n in range(len(graph.output))]
        data = ((inputs, outputs),)
        found.append(Case(title, "light", file.read_bytes(), (), data, told["rtol"], told["atol"]))
    return found


def _ramp(shape: Sequence[int]) -> Array:
    size = math.prod(shape)
    ramp: Array = (np.arange(size).reshape(shape) / size).astype(np.float32)
    return ramp


def package_cases() -> list[Case]:
    """The small models that come with the ``onnx`` package."""
    folders = ("simple", "pytorch-converted", "pytorch-operator")
    return [case for group in folders for case in _folder(PACKAGE, group)]


def debian_cases() -> list[Case]:
    """The single-operator cases of Debian's package; none where it is not installed."""
    return _folder(DEBIAN, "node")


def _folder(data: Path, group: str) -> list[Case]:
    return [
        Case(file.parent.name, group, file.read_bytes(), tuple(sorted(file.parent.glob("test_data_set_*"))))
        for file in sorted((data / group).glob("*/model.onnx"))
    ]


def made_cases() -> list[Case]:
    """The single-operator cases of the installed ``onnx`` package, whose code makes them (some seconds)."""
    from onnx.backend.test.loader import load_model_tests

    state = np.random.get_state()
    np.random.seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # infinities are meant, and numpy remarks on them
            made = load_model_tests(kind="node")
    finally:
        np.random.set_state(state)
    return [
        Case(
            title=case.name,
            group="made",
            model=case.model.SerializeToString(),
            data=tuple((list(inputs), list(outputs)) for inputs, outputs in case.data_sets),
            rtol=case.rtol,
            atol=case.atol,
        )
        for case in sorted(made, key=lambda case: case.name)
    ]


def judge(case: Case) -> Verdict:
    """Run the case in plain ONNX Runtime, one thread, on the CPU, and say what the server is to make of it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(case.model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return Verdict(case, LOAD_FAILS, LOAD_FAILS, _words(error))
    args = [*session.get_inputs(), *session.get_outputs()]
    foreign = sorted({arg.type for arg in args if arg.type not in DATATYPES})
    if foreign:
        reason = NO_DATATYPE if all(name.startswith("tensor(") for name in foreign) else NOT_TENSORS
        return Verdict(case, reason, reason, ", ".join(foreign))
    runs = []
    for given, expected in _data(case):
        # The n-th value is for the n-th input that is not a weight.
        inputs = {arg.name: _array(v, arg.type) for arg, v in zip(session.get_inputs(), given, strict=False)}
        outputs = [_array(v, arg.type) for arg, v in zip(session.get_outputs(), expected, strict=False)]
        try:
            plain = _run(session, inputs)
        except Exception as error:
            return Verdict(case, RUN_FAILS, RUN_FAILS, _words(error))
        if fault := differs(plain, outputs, case.rtol, case.atol):
            return Verdict(case, WRONG, WRONG, fault)
        runs.append(Run(inputs, outputs, plain))
    values = [array for run in runs for array in (*run.inputs.values(), *run.plain)]
    return Verdict(
        case,
        json=None if all(finite(array) for array in values) else NOT_FINITE,
        runs=tuple(runs),
        inputs={arg.name: DATATYPES[arg.type] for arg in session.get_inputs()},
        outputs={arg.name: DATATYPES[arg.type] for arg in session.get_outputs()},
    )


def finite(array: Array) -> bool:
    """False if there is a NaN or an infinity in it."""
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float32)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def differs(found: Sequence[Array], expected: Sequence[Array], rtol: float, atol: float) -> str | None:
    """How two lists of arrays differ, as ONNX's own runner compares them, or None.

    With ``rtol`` and ``atol`` 0 every bit counts, but one NaN is as good as another.
    """
    if len(found) != len(expected):
        return f"{len(found)} outputs instead of {len(expected)}"
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        if fault := _differ(np.asarray(one), other, rtol, atol):
            return f"output {at}: {fault}"
    return None


def _differ(one: Array, other: Array, rtol: float, atol: float) -> str | None:
    if one.shape != other.shape:
        return f"shape {list(one.shape)} instead of {list(other.shape)}"
    if other.dtype == object:
        return None if one.tolist() == other.tolist() else "other strings"
    if one.dtype != other.dtype:
        return f"{one.dtype} instead of {other.dtype}"
    if not rtol and not atol:
        unsigned = f"u{one.dtype.itemsize}"
        same = np.ascontiguousarray(one).view(unsigned) == np.ascontiguousarray(other).view(unsigned)
        if one.dtype != np.bool_:
            same |= (one != one) & (other != other)
        return None if same.all() else "other bits"
    if other.dtype == ml_dtypes.bfloat16:
        rtol = max(rtol, 2**-6)  # two units in the last place, as ONNX's runner allows
        one, other = one.astype(np.float32), other.astype(np.float32)
    if np.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True):
        return None
    # No number that depends on the machine: this gets into the page.
    return "other values"


def _data(case: Case) -> Iterator[Data]:
    yield from case.data
    for folder in case.sets:
        inputs, outputs = (
            sorted(folder.glob(f"{kind}_*.pb"), key=lambda file: int(file.stem.rpartition("_")[2]))
            for kind in ("input", "output")
        )
        yield [_read(file) for file in inputs], [_read(file) for file in outputs]


def _read(file: Path) -> onnx.TensorProto:
    return onnx.TensorProto.FromString(file.read_bytes())


def _array(value: Any, kind: str) -> Array:
    array = np.asarray(nh.to_array(value) if isinstance(value, onnx.TensorProto) else value)
    if kind == "tensor(bfloat16)" and array.dtype == np.uint16:
        return array.view(ml_dtypes.bfloat16)  # older data has the bits only
    if array.dtype.kind in "OSU":  # strings come as text or as bytes
        flat = [e.decode() if isinstance(e, bytes) else str(e) for e in array.reshape(-1).tolist()]
        array = np.array(flat, dtype=object).reshape(array.shape)
    return array


def _run(session: Any, inputs: dict[str, Array]) -> list[Array]:
    kinds = [arg.type for arg in (*session.get_inputs(), *session.get_outputs())]
    if "tensor(bfloat16)" not in kinds:
        found: list[Array] = session.run(None, inputs)
        return found
    values = {}
    for name, array in inputs.items():
        if array.dtype == ml_dtypes.bfloat16:
            bits = np.asarray(array, order="C").view(np.uint16)
            values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
        else:
            values[name] = ort.OrtValue.ortvalue_from_numpy(array)
    names = [arg.name for arg in session.get_outputs()]
    return [_from(value) for value in session.run_with_ort_values(names, values)]


def _from(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        plain: Array = value.numpy()
        return plain
    shape = value.shape()
    raw = ctypes.string_at(value.data_ptr(), math.prod(shape) * 2)
    return np.frombuffer(raw, dtype=ml_dtypes.bfloat16).reshape(shape)


_SOURCE = re.compile(r"/\S+\.(?:cc|cpp|h):\d+ ")
_SIGNATURE = re.compile(r"^.*?\)(?: const)?(?:::<lambda\(\)>)?(?: \[with [^\]]*\])? (?=\S)")


def _words(error: Exception) -> str:
    """The runtime's message in short, without positions in its source."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    text = text.rpartition(" Status Message: ")[2]
    text = re.sub(r"^(?:Load model from \S* ?failed:)?(?:Fatal error: )?", "", text)
    if source := _SOURCE.search(text):
        text = _SIGNATURE.sub("", text[source.end() :])
    return text.replace(" with name ''", "").replace("|", "/")[:120].strip()


def counted(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many cases each reason concerns, in the order of ``REASONS``."""
    reasons = Counter(v.binary or v.json for v in verdicts)
    return {reason: reasons[reason] for reason in REASONS if reasons[reason]}


def datatypes(verdicts: Iterable[Verdict], way: str) -> str:
    """In how many cases answered this way (``binary``, ``json``) each datatype is an input or an output."""
    answered = (v for v in verdicts if getattr(v, way) is None)
    found = Counter(name for v in answered for name in {*v.inputs.values(), *v.outputs.values()})
    return ", ".join(f"{name} {n}" for name, n in sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


_INTRODUCTION = """\
# Conformance

ONNX's own test data, asked of the whole product: every model lies in the models folder of a running server, and
each case goes through the Open Inference Protocol twice, as binary data with `tritonclient` and as plain JSON. An
answer must have the datatype and shape of the expected one, be within the tolerance of ONNX's own runner, and be
bit for bit what plain ONNX Runtime answers with one thread. `tests/http/test_conformance.py` does it. A model listed
below as not to be loaded must be refused with the reason, and so must a JSON request that cannot be answered. A model
whose right answers hold a NaN or an infinity has `finite = false` in its `model.toml`; all others have no settings.

Written by `python -m tests.support.onnx_cases > docs/conformance.md` with ONNX Runtime {ort} on the CPU, the `onnx`
package {onnx} and Debian's package `libonnx-testdata`. What ONNX Runtime itself can run depends on its version and
on the machine (the locale `en_US.UTF-8`, for one)."""


def page(groups: dict[str, list[Verdict]]) -> str:
    """The page for the documentation. ``groups``: by a title of where the cases come from."""
    lines = [_INTRODUCTION.format(ort=ort.__version__, onnx=onnx.__version__)]
    lines += ["", "| source | group | cases | answered, binary | answered, JSON |", "|---|---|---:|---:|---:|"]
    for source, verdicts in groups.items():
        binary, as_json = (sum(getattr(v, way) is None for v in verdicts) for way in ("binary", "json"))
        names = ", ".join(f"`{name}`" for name in sorted({v.case.group for v in verdicts}))
        lines.append(f"| {source} | {names} | {len(verdicts)} | {binary} | {as_json} |")
    every = [v for verdicts in groups.values() for v in verdicts]
    lines += ["", "In how many of the answered cases each datatype is an input or an output:", ""]
    lines += [f"- binary: {datatypes(every, 'binary')}", f"- JSON: {datatypes(every, 'json')}"]
    lines += ["", "## Not answered"]
    for reason, n in counted(every).items():
        lines += ["", f"### {reason}", "", f"{n} cases.", ""]
        if reason == NOT_FINITE:
            names = [f"`{v.case.name}`" for v in every if v.binary is None and v.json]
            lines.append(", ".join(names))
            continue
        named = defaultdict(list)
        for v in every:
            if v.binary == reason:
                named[v.detail].append(f"`{v.case.name}`")
        lines += ["| what | cases |", "|---|---|"]
        lines += [f"| {what} | {', '.join(names)} |" for what, names in sorted(named.items())]
    return "\n".join(lines)


def main() -> None:
    """Write the page to the standard output."""
    sources = {
        "whole networks of the `onnx` package": light_cases(),
        "small models of the `onnx` package": package_cases(),
        "single operators, made by the `onnx` package": made_cases(),
        "single operators of Debian's `libonnx-testdata`": debian_cases(),
    }
    if not all(sources.values()):
        sys.exit("the data is not complete; install Debian's package libonnx-testdata")
    print(page({source: [judge(case) for case in cases] for source, cases in sources.items()}))


if __name__ == "__main__":
    main()
