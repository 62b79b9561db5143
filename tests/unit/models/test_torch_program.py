"""Which `torch.export` programs are refused before PyTorch reads them, and that what they hold did not run."""

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import ModelLoadError
from appliance.models import torch_program
from tests.support import torch_nets
from tests.support.torch_nets import torch
from tests.unit.models.torch_helpers import Evil, refused, runs_elsewhere


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Made by whatever code in a file runs."""
    return tmp_path / "it-ran"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_nets.export(tmp_path_factory.mktemp("good") / "model.pt2")


# --- programs --------------------------------------------------------------------------------------------------


def saved(what: Any) -> bytes:
    out = io.BytesIO()
    torch.save(what, out)
    return out.getvalue()


def test_sample_inputs_that_run_code(tmp_path: Path, mark: Path, good: Path) -> None:
    path = torch_nets.rewritten(
        good, tmp_path / "m.pt2", lambda name, content: content, {"data/sample_inputs/model.pt": saved((Evil(mark),))}
    )
    assert "cannot load it" in refused(path)
    assert not mark.exists()
    assert runs_elsewhere(path, mark)


@pytest.mark.parametrize("prefix", ["weight_0", "opaque_obj_0", "custom_obj_0"])
def test_weights_and_constants_that_are_pickled(tmp_path: Path, mark: Path, good: Path, prefix: str) -> None:
    folder, config = (
        ("weights", "model_weights_config") if prefix == "weight_0" else ("constants", "model_constants_config")
    )
    entry = {"path_name": prefix, "is_param": False, "use_pickle": True, "tensor_meta": None}
    content = saved(Evil(mark)) if prefix == "weight_0" else pickle.dumps(Evil(mark))
    changed = {
        f"data/{folder}/{config}.json": json.dumps({"config": {"line.weight": entry}}).encode(),
        f"data/{folder}/{prefix}": content,
    }
    path = torch_nets.rewritten(good, tmp_path / "m.pt2", lambda name, content: content, changed)
    assert "'line.weight' in it is pickled, which is never loaded" in refused(path)
    assert not mark.exists()
    if prefix != "custom_obj_0":
        assert runs_elsewhere(path, mark)


def graph(program: Any) -> Any:
    return program["graph_module"]["graph"]


def size_runs(mark: str) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        expression = f"__import__('pathlib').Path({mark!r}).touch() or Symbol('s0')"
        values = graph(program)["tensor_values"]
        for value in values.values():
            for size in value["sizes"]:
                if "as_expr" in size:
                    size["as_expr"]["expr_str"] = expression

    return change


def target_runs(mark: str) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        node = graph(program)["nodes"][0]
        node["target"] = "torch.os.system"
        node["inputs"] = [{"name": "", "arg": {"as_string": f"touch {mark}"}, "kind": 1}]

    return change


def name_runs(mark: str) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        text = json.dumps(program)
        name = graph(program)["nodes"][0]["name"]
        # A line of its own in the code that is made of the graph.
        evil = f"q = 1; __import__('pathlib').Path({mark!r}).touch(); {name}"
        program.clear()
        program.update(json.loads(text.replace(json.dumps(name), json.dumps(evil))))

    return change


def guard_runs(mark: str) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        program["guards_code"] = [f"__import__('pathlib').Path({mark!r}).touch() is None"]

    return change


def argument_runs(mark: str) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        call = program["graph_module"]["module_call_graph"][0]["signature"]
        call["forward_arg_names"] = [f"x=__import__('pathlib').Path({mark!r}).touch()"]

    return change


def tree_runs(mark: str) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        call = program["graph_module"]["module_call_graph"][0]["signature"]
        context = json.dumps({"__enum__": True, "fqn": "antigravity:x", "name": "x"})
        call["out_spec"] = json.dumps([1, {"type": "builtins.dict", "context": context, "children_spec": []}])

    return change


@pytest.mark.parametrize(
    ("attack", "words", "real"),
    [
        (size_runs, "a size in its program is not one that torch.export writes", True),
        (target_runs, "it calls torch.os.system, which is not an operator", False),
        (name_runs, "in its program is not one that torch.export writes: q = 1; ", False),
        (guard_runs, "a condition in its program is not one that torch.export writes", True),
        (argument_runs, "'forward_arg_names' in its program is not one that torch.export writes", False),
        (tree_runs, "a tree's key in its program is not one", False),
    ],
)
def test_programs_that_run_code(
    tmp_path: Path, mark: Path, good: Path, attack: Callable[[str], Any], words: str, real: bool
) -> None:
    path = torch_nets.program_changed(good, tmp_path / "m.pt2", attack(str(mark)))
    assert words in refused(path)
    assert not mark.exists()
    if real:  # PyTorch's own reader falls for it
        assert runs_elsewhere(path, mark)


@pytest.mark.parametrize(
    ("target", "fine"),
    [
        ("torch.ops.aten.add.Tensor", True),
        ("torch.ops.aten.__and__.Tensor", True),
        ("torch.ops.higher_order.cond", True),
        ("_operator.mul", True),
        ("math.ceil", True),
        ("torch.sym_max", True),
        ("torch.ops.aten.from_file.default", False),
        ("torch.ops.aten.from_file.out", False),
        ("torch.ops.aten.__class__.mro", False),
        ("torch.ops.load_library", False),
        ("torch.ops.mine.op.default", False),
        ("torch.ops.higher_order.triton_kernel_wrapper_functional", False),
        ("torch.load", False),
        ("torch.hub.load", False),
        ("_operator.attrgetter", False),
        ("_operator.methodcaller", False),
        ("#extension:op", False),
        ("os.system", False),
        ("torch.ops.aten.add.Tensor\n", False),
    ],
)
def test_targets(target: str, fine: bool) -> None:
    program = json.dumps({"nodes": [{"target": target}]}).encode()
    if fine:
        torch_program.check(program, {})
    else:
        with pytest.raises(ModelLoadError, match="is not an operator of PyTorch's that may be run"):
            torch_program.check(program, {})


@pytest.mark.parametrize(
    ("key", "text", "fine"),
    [
        ("expr_str", "Symbol('s77', positive=True, integer=True)", True),
        ("expr_str", "Add(Mul(Integer(2), Symbol('s0')), Integer(-1))", True),
        ("expr_str", "FloorDiv(s0 + 1, 2)", True),
        ("expr_str", "Float('0.5', precision=53)", True),
        ("expr_str", "Symbol('x y')", False),
        ("expr_str", "Symbol.mro()", False),
        ("expr_str", "exec('1')", False),
        ("expr_str", "(lambda: 1)()", False),
        ("expr_str", "[s0 for s0 in (1,)]", False),
        ("expr_str", "9**9**9", False),
        ("guards_code", "((1 + L['x'].size()[1]) // 2) == L['y'].size()[1]", True),
        ("guards_code", "L['x'][0]['a b'].size()[0] % 2 != 0", True),
        ("guards_code", "L['x'].numpy()", False),
        ("guards_code", "L['x'].size().__class__", False),
        ("guards_code", 'L["it\'s"].size()[0] == 1', False),
        ("guards_code", "print(1)", False),
        ("as_string", "mode = 'bilinear' (any text)", True),
        ("as_float", "-Infinity", True),
        ("name", "x y", False),
        ("parameter_name", 'line"]', False),
    ],
)
def test_texts_of_a_program(key: str, text: str, fine: bool) -> None:
    program = json.dumps({"a": [{key: text}]}).encode()
    if fine:
        torch_program.check(program, {})
    else:
        with pytest.raises(ModelLoadError, match=r"is not one that torch\.export writes"):
            torch_program.check(program, {})


def test_a_fixed_input_is_no_place_for_any_text() -> None:
    """It becomes code: the check that the input is that text."""
    torch_program.check(json.dumps({"constant_input": {"value": {"as_string": "mean"}}}).encode(), {})
    with pytest.raises(ModelLoadError):
        torch_program.check(json.dumps({"constant_input": {"value": {"as_string": "' or evil() or '"}}}).encode(), {})
