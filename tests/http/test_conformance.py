"""ONNX's own test data through the whole product: a models folder, a server, and two clients of its API."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import onnx
import psutil
import pytest
import tritonclient.http as triton

from appliance.models.tensors import DATATYPES
from tests.support import onnx_cases as oc
from tests.support.server import ROOT, Server

Tell = Callable[[str], None]
Ask = Callable[[oc.Verdict, oc.Run], list[Any]]
pytestmark = pytest.mark.timeout(600)  # a thousand models; a busy machine needs more time than for other tests

_NUMPY = {
    "BOOL": np.bool_,
    "BF16": ml_dtypes.bfloat16,
    "BYTES": np.object_,
    **{f"FP{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": np.dtype(f"u{size}") for size in (1, 2, 4, 8)},
}


class Served:
    """A running server over the models of some cases, and what plain ONNX Runtime makes of each (by name)."""

    def __init__(self, folder: Path, cases: Sequence[oc.Case]) -> None:
        self.verdicts = {case.name: oc.judge(case) for case in cases}
        # One thread a run, so that sums are made in the same order as in plain ONNX Runtime with one thread.
        self.server = Server(folder, threads=1)
        for case in cases:
            home = self.server.models / case.name
            home.mkdir()
            (home / "model.onnx").write_bytes(case.model)
            if not all(oc.finite(array) for run in self.verdicts[case.name].runs for array in run.plain):
                (home / "model.toml").write_text("finite = false\n")

    def start(self) -> None:
        started = time.perf_counter()
        self.server.start(wait_s=300)
        self.ready_s = time.perf_counter() - started
        assert self.server.process is not None
        pids = {"host": self.server.process.pid, "engine": self.server.engine_pid}
        self.figures = ", ".join(_figures(name, psutil.Process(pid)) for name, pid in pids.items())
        self.index = {name: entry for (name, _), entry in self.server.index().items()}
        address = self.server.url.removeprefix("http://")
        self.client = triton.InferenceServerClient(address, connection_timeout=60, network_timeout=60)

    def binary(self, verdict: oc.Verdict, run: oc.Run) -> list[Any]:
        """The outputs by ``tritonclient``; RuntimeError with the server's words."""
        inputs = []
        for name, array in run.inputs.items():
            inputs.append(triton.InferInput(name, list(array.shape), verdict.inputs[name]))
            inputs[-1].set_data_from_numpy(array)
        try:
            answer = self.client.infer(verdict.case.name, inputs)
        except triton.InferenceServerException as error:
            raise RuntimeError(str(error)) from None
        return _arrays(verdict, answer)

    def json(self, verdict: oc.Verdict, run: oc.Run) -> list[Any]:
        """The outputs by plain JSON; RuntimeError with the server's words."""
        answer = self._post(verdict, run, {})
        told = answer.json()
        _check_described(verdict, told["outputs"])
        return [np.array(o["data"], dtype=_NUMPY[o["datatype"]]).reshape(o["shape"]) for o in told["outputs"]]

    def mixed(self, verdict: oc.Verdict, run: oc.Run) -> list[Any]:
        """Inputs as JSON, outputs as binary data."""
        answer = self._post(verdict, run, {"binary_data_output": True})
        length = int(answer.headers["inference-header-content-length"])
        result = triton.InferenceServerClient.parse_response_body(answer.content, header_length=length)
        return _arrays(verdict, result)

    def _post(self, verdict: oc.Verdict, run: oc.Run, parameters: dict[str, Any]) -> httpx.Response:
        inputs = [
            {"name": name, "shape": array.shape, "datatype": verdict.inputs[name], "data": _listed(array)}
            for name, array in run.inputs.items()
        ]
        # Python's own writer makes NaN of a NaN, which is no JSON; the server has to say so.
        body = json.dumps({"inputs": inputs, "parameters": parameters})
        answer = self.server.client.post(f"/v2/models/{verdict.case.name}/infer", content=body)
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code} {answer.json()['code']}: {answer.json()['error']}")
        return answer

    def faults(self, verdict: oc.Verdict) -> dict[str, str]:
        """Everything that is wrong with one case, by the way in which it was asked."""
        entry = self.index[verdict.case.name]
        if verdict.binary in oc.NOT_SERVED:
            told = entry.get("reason", "")
            right = entry["state"] == "UNAVAILABLE" and told
            if not right or ("cannot carry" in told) != (verdict.binary != oc.LOAD_FAILS):
                return {"index": f"should be refused with the reason: {entry}"}
            return {}
        if entry["state"] != "READY":
            return {"index": f"should be served: {entry}"}
        found = {}
        for run in verdict.runs:
            given = all(oc.finite(array) for array in run.inputs.values())
            ways: list[tuple[str, Ask, str | None]] = [("binary", self.binary, None)]
            if verdict.json is None:
                ways.append(("json", self.json, None))
            else:
                # Which error it is tells whether the request or the answer was at fault.
                ways.append(("json", self.json, "500 invalid_output" if given else "400 invalid_input"))
                ways += [("mixed", self.mixed, None)] if given else []
            for way, ask, refused in ways:
                if fault := _ask(verdict, run, ask, refused):
                    found[way] = fault
        return found


def _ask(verdict: oc.Verdict, run: oc.Run, ask: "Ask", refused: str | None) -> str | None:
    """The fault of one request, or None. ``refused``: with what it is to be refused, if it is."""
    try:
        answer = ask(verdict, run)
    except (RuntimeError, AssertionError) as error:
        return None if refused and str(error).startswith(refused) else str(error)
    if refused:
        return "should have been refused"
    case = verdict.case
    if wrong := oc.differs(answer, run.expected, case.rtol, case.atol):
        return wrong
    other = oc.differs(answer, run.plain, 0, 0)
    return f"not what plain ONNX Runtime answers: {other}" if other else None


def _figures(name: str, process: psutil.Process) -> str:
    return f"{name} {process.memory_info().rss >> 20} MB, {process.num_threads()} threads"


def _check_described(verdict: oc.Verdict, entries: list[dict[str, Any]]) -> None:
    told = {entry["name"]: entry["datatype"] for entry in entries}
    assert list(told.items()) == list(verdict.outputs.items()), f"the outputs are {told}"


def _arrays(verdict: oc.Verdict, result: triton.InferResult) -> list[Any]:
    entries = result.get_response()["outputs"]
    _check_described(verdict, entries)
    found = [result.as_numpy(entry["name"]) for entry in entries]
    return [_text(array) if array.dtype == object else array for array in found]


def _text(array: Any) -> Any:
    return np.array([e.decode() for e in array.reshape(-1)], dtype=object).reshape(array.shape)


def _listed(array: Any) -> list[Any]:
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float32)
    listed: list[Any] = array.reshape(-1).tolist()
    return listed


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Prints a line that is seen in a passing run too."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", end="", flush=True)

    return line


def _served(folder: Path, cases: Sequence[oc.Case]) -> Iterator[Served]:
    served = Served(folder, cases)
    with served.server.client:
        try:
            served.start()
            yield served
            served.client.close()
        finally:
            if served.server.process is not None:
                served.server.stop()


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from _served(tmp_path_factory.mktemp("networks"), oc.light_cases())


@pytest.fixture(scope="module")
def made() -> list[oc.Case]:
    return oc.made_cases()


@pytest.fixture(scope="module")
def operators(made: list[oc.Case], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All small models in one folder of one server."""
    yield from _served(tmp_path_factory.mktemp("operators"), [*oc.package_cases(), *made, *oc.debian_cases()])


def check(served: Served, cases: Sequence[oc.Case], tell: Tell, title: str) -> tuple[int, int]:
    """Ask each case both ways, print the numbers and fail with all that is wrong.

    Returns how many were answered rightly in binary and in JSON.
    """
    verdicts = [served.verdicts[case.name] for case in cases]
    started = time.perf_counter()
    faults = {v.case.name: served.faults(v) for v in verdicts}
    took = time.perf_counter() - started
    binary, as_json = (
        sum(getattr(v, way) is None and not faults[v.case.name].keys() & {way, "index"} for v in verdicts)
        for way in ("binary", "json")
    )
    tell(f"{title}: {len(cases)} cases; passed in binary {binary}, in JSON {as_json}")
    for reason, n in oc.counted(verdicts).items():
        tell(f"  not answered {n}: {reason}")
    tell(f"  datatypes, binary: {oc.datatypes(verdicts, 'binary')}")
    tell(f"  datatypes, JSON: {oc.datatypes(verdicts, 'json')}")
    tell(f"  asked in {took:.1f} s; {len(served.index)} models ready after {served.ready_s:.1f} s; {served.figures}")
    wrong = [f"{name}, {way}: {fault}" for name, found in faults.items() for way, fault in found.items()]
    assert not wrong, f"{len(wrong)} faults:\n" + "\n".join(wrong)
    return binary, as_json


def test_whole_networks(networks: Served, tell: Tell) -> None:
    assert check(networks, oc.light_cases(), tell, "whole networks") == (9, 9)


def test_small_models_of_the_onnx_package(operators: Served, tell: Tell) -> None:
    binary, as_json = check(operators, oc.package_cases(), tell, "small models")
    assert binary >= 100
    assert as_json >= 99


def test_single_operators_made_by_the_onnx_package(operators: Served, made: list[oc.Case], tell: Tell) -> None:
    binary, as_json = check(operators, made, tell, "single operators, made")
    assert binary >= 1581
    assert as_json >= 1535


def test_single_operators_of_debian(operators: Served, tell: Tell) -> None:
    cases = oc.debian_cases()
    if not cases:
        pytest.skip("Debian's package libonnx-testdata is not installed")
    assert len(cases) >= 932
    binary, as_json = check(operators, cases, tell, "single operators, Debian")
    assert binary >= 863
    assert as_json >= 854


def test_every_datatype_is_covered(operators: Served) -> None:
    for way in ("binary", "json"):
        told = oc.datatypes(operators.verdicts.values(), way)
        assert {part.split()[0] for part in told.split(", ")} == set(DATATYPES)


def test_the_page_is_up_to_date(operators: Served) -> None:
    """What the protocol cannot carry is listed; what ONNX Runtime can run is the machine's own matter."""
    page = (ROOT / "docs" / "conformance.md").read_text()
    if f"`onnx`\npackage {onnx.__version__} " not in page:
        pytest.skip(f"the page is not for the data of onnx {onnx.__version__}")
    for verdict in operators.verdicts.values():
        if verdict.binary in (oc.NOT_TENSORS, oc.NO_DATATYPE):
            assert f"`{verdict.case.name}`" in page
