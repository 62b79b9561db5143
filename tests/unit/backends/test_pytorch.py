"""The PyTorch backend on the CPU, with models of a few operators and answers worked out by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from appliance.backends.base import LoadRequest
from appliance.backends.onnx import OnnxBackend
from appliance.engine.warmup import warm_up
from appliance.errors import InvalidInput, ModelLoadError
from appliance.models.spec import ModelConfig, TensorSpec, Warmup
from tests.support import nets, torch_nets
from tests.support.torch_nets import torch
from tests.unit.backends.pytorch_helpers import INPUT, X, Y, opened, run

# --- three formats of one model --------------------------------------------------------------------------------


def test_a_model_in_three_formats_gives_the_same(tmp_path: Path) -> None:
    script = opened(torch_nets.script(tmp_path / "small.pt"))
    program = opened(torch_nets.export(tmp_path / "small.pt2"))
    nodes = [h.make_node("Gemm", ["x", "w", "b"], ["l"], transB=1), h.make_node("Relu", ["l"], ["y"])]
    weights = {"w": torch_nets.WEIGHT, "b": torch_nets.BIAS}
    path = nets.save(tmp_path / "s.onnx", nodes, [("x", T.FLOAT, ["N", 4])], [("y", T.FLOAT, ["N", 3])], weights)
    onnx = OnnxBackend().open(LoadRequest("m", path, path.parent, "cpu", 1, ModelConfig()))
    wanted = np.array([[0, 0, 6], [0, 0, 0], [0.5, 0, 0]], np.float32)
    np.testing.assert_array_equal(torch_nets.expected(INPUT), wanted)
    for session in (script, program, onnx):
        (found,) = run(session, x=INPUT)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        assert found.dtype == np.float32
        assert found.flags.c_contiguous


def test_a_program_tells_its_inputs_and_outputs(tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def forward(self, ids: Any, scale: Any) -> Any:
            return {"doubled": ids * 2, "mean": (ids * scale).mean(1)}

    rows = torch.export.Dim("rows", min=1, max=8)
    args = (torch.ones(3, 5, dtype=torch.int32), torch.ones(3, 1))
    session = opened(torch_nets.export(tmp_path / "m.pt2", Two(), args, ids={0: rows}, scale={0: rows}))
    assert [(t.name, t.datatype, t.shape) for t in session.opened.inputs] == [
        ("ids", "INT32", (-1, 5)),
        ("scale", "FP32", (-1, 1)),
    ]
    assert [(t.name, t.datatype, t.shape) for t in session.opened.outputs] == [
        ("doubled", "INT32", (-1, 5)),
        ("mean", "FP32", (-1,)),
    ]
    assert session.opened.batch_axis
    assert session.opened.platform == "pytorch_export"
    ids = np.array([[1, 2, 3, 4, 5]], np.int32)
    mean, doubled = run(session, ["mean", "doubled"], ids=ids, scale=np.array([[2]], np.float32))
    assert mean.tolist() == [6.0]
    assert doubled.tolist() == [[2, 4, 6, 8, 10]]


def test_what_an_export_demands_of_its_inputs_is_the_callers_fault(tmp_path: Path) -> None:
    session = opened(torch_nets.export(tmp_path / "m.pt2"))
    assert run(session, x=np.zeros((64, 4), np.float32))[0].shape == (64, 3)
    with pytest.raises(InvalidInput, match=r"was not exported for this input: it needs .*64"):
        run(session, x=np.zeros((65, 4), np.float32))


# --- TorchScript: the settings tell its tensors ----------------------------------------------------------------


class Steps(torch.nn.Module):
    """``a`` times a whole number, and its sum."""

    def forward(self, a: torch.Tensor, times: int, shift: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
        return a * times + shift, a.sum()


A, TIMES = TensorSpec("a", "FP32", (-1,)), TensorSpec("times", "INT64", ())
OUT, SUM = TensorSpec("OUTPUT__0", "FP32", (-1,)), TensorSpec("OUTPUT__1", "FP32", ())


@pytest.mark.parametrize(
    "inputs",
    [
        (A, TIMES),
        (TIMES, A),
        (TensorSpec("INPUT__1", "INT64", (1,)), TensorSpec("INPUT__0", "FP32", (-1,))),
        (TensorSpec("first", "FP32", (-1,)), TensorSpec("second", "INT64", ())),
    ],
)
def test_declared_inputs_go_by_name_by_number_or_in_order(tmp_path: Path, inputs: tuple[TensorSpec, ...]) -> None:
    session = opened(torch_nets.script(tmp_path / "m.pt", Steps()), inputs, (OUT, SUM))
    values = {t.name: np.array(3) if t.datatype == "INT64" else np.array([1, 2], np.float32) for t in inputs}
    out, total = run(session, **values)
    assert out.tolist() == [3.5, 6.5]
    assert total.tolist() == 3.0
    assert run(session, ["OUTPUT__1"], **values)[0].tolist() == 3.0


def test_a_dictionary_has_names_of_its_own(tmp_path: Path) -> None:
    class Named(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"minus": -x, "plus": x + 1}

    path = torch_nets.script(tmp_path / "m.pt", Named())
    plus = TensorSpec("plus", "FP32", (-1, 4))
    assert run(opened(path, (X,), (plus,)), x=INPUT)[0].tolist() == (INPUT + 1).tolist()
    with pytest.raises(ModelLoadError, match="the model gives minus, plus; declare these names"):
        run(opened(path, (X,), (Y,)), x=INPUT)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ((), (Y,), r"declare them in model.toml, each as \[\[inputs\]\].*the model's arguments: a Tensor, times int"),
        ((A, TIMES), (), r"each as \[\[outputs\]\]"),
        ((A,), (OUT,), "'times' is not declared"),
        ((A, TIMES, X, Y), (OUT,), "4 are declared, the model has 3"),
        ((A, TensorSpec("times", "INT64", (3,))), (OUT,), r"'times' is one int of the model's"),
        ((TensorSpec("a", "BYTES", (1,)), TIMES), (OUT,), "'a' must have the datatype of a tensor of numbers"),
        ((TensorSpec("INPUT__0", "FP32", (-1,)), TensorSpec("INPUT__7", "INT64", ())), (OUT,), "'INPUT__7' counts"),
    ],
)
def test_declarations_that_do_not_suit_the_file(
    tmp_path: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], words: str
) -> None:
    path = torch_nets.script(tmp_path / "m.pt", Steps())
    with pytest.raises(ModelLoadError, match=words):
        opened(path, inputs, outputs)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (TensorSpec("y", "FP16", (-1, 3)), "'y' is FP32, not FP16 as declared"),
        (TensorSpec("y", "FP32", (-1, 2)), r"'y' is \[1, 3\], not \[-1, 2\] as declared"),
        (TensorSpec("y", "FP32", (-1,)), r"'y' is \[1, 3\], not \[-1\] as declared"),
    ],
)
def test_the_warm_up_finds_outputs_that_are_not_as_declared(tmp_path: Path, output: TensorSpec, words: str) -> None:
    session = opened(torch_nets.script(tmp_path / "m.pt"), outputs=(output,))
    with pytest.raises(ModelLoadError, match=words):
        warm_up(session, Warmup(), 8, False)


def test_merging_is_proven_as_with_any_model(tmp_path: Path) -> None:
    for path in (torch_nets.script(tmp_path / "m.pt"), torch_nets.export(tmp_path / "m.pt2")):
        session = opened(path)
        assert session.opened.batch_axis
        assert warm_up(session, Warmup(), 8, False).max_batch == 8


def test_outputs_that_were_not_asked_for_and_inputs_that_are_missing(tmp_path: Path) -> None:
    session = opened(torch_nets.script(tmp_path / "m.pt"))
    with pytest.raises(InvalidInput, match="input 'x' is missing"):
        run(session)


# --- models with a memory of their own -------------------------------------------------------------------------


class Counting(torch.nn.Module):
    """Keeps what it has seen: in an attribute, or in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.in_place = in_place
        self.part = torch_nets.Small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            self.seen.add_(1)
        else:
            self.seen = self.seen + 1
        return self.part(x) + self.seen


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_that_keeps_values_between_runs_is_refused(tmp_path: Path, in_place: bool) -> None:
    words = r"keeps values in itself from one run to the next \(seen\)"
    with pytest.raises(ModelLoadError, match=words):
        opened(torch_nets.export(tmp_path / "m.pt2", Counting(in_place)))
    path = torch_nets.script(tmp_path / "m.pt", Counting(in_place))
    with pytest.raises(ModelLoadError, match=rf"{words}.*pytorch.module \(it has: part\)"):
        opened(path)
    (found,) = run(opened(path, module="part"), x=INPUT)
    np.testing.assert_allclose(found, torch_nets.expected(INPUT), atol=1e-6)
    with pytest.raises(ModelLoadError, match=r"no part 'pert' in it \(there are: part"):
        opened(path, module="pert")
    with pytest.raises(ModelLoadError, match=r"no 'encode' in it \(there are: forward"):
        opened(path, module="part", method="encode")


def test_what_changes_only_in_training_is_no_memory(tmp_path: Path) -> None:
    class Normal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x)

    wanted = INPUT / np.sqrt(np.float32(1 + 1e-5))
    output = TensorSpec("y", "FP32", (-1, 4))
    for path in (torch_nets.script(tmp_path / "m.pt", Normal()), torch_nets.export(tmp_path / "m.pt2", Normal())):
        (found,) = run(opened(path, outputs=(output,)), x=INPUT)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_another_method_can_be_named(tmp_path: Path) -> None:
    class Coder(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

        @torch.jit.export
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return x * 10

    session = opened(
        torch_nets.script(tmp_path / "m.pt", Coder()), (X,), (TensorSpec("y", "FP32", (-1, 4)),), method="encode"
    )
    assert run(session, x=INPUT)[0].tolist() == (INPUT * 10).tolist()
