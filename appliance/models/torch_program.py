"""Which ``torch.export`` programs may be loaded. Pure: the program's JSON is read here, and nothing else.

PyTorch's own reader trusts the file: names go into generated Python code as they are, expressions of sizes through an
evaluator, a target may be any function that can be reached from ``torch``, and what does not fit the format is
unpickled. So every text of the program must be one of those that an export writes. What is not known is refused: each
key's text has a rule, and the rule of all others is "a name".
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from appliance.errors import ModelLoadError
from appliance.models.torch_script import operator_fault

_NAME = re.compile(r"[\w.]{0,512}", re.ASCII)
_FLOAT = re.compile(r"-?(?:Infinity|NaN|inf|nan)")
_VERSION = re.compile(r"[\w.+<=>-]{0,64}", re.ASCII)
_PART = r"[A-Za-z_][A-Za-z0-9_]*"
_OPERATOR = re.compile(rf"torch\.ops\.(aten|prims|quantized_decomposed|torchvision)\.({_PART})\.({_PART})")
_HIGHER = re.compile(
    r"torch\.ops\.higher_order\.(cond|while_loop|scan|associative_scan|map_impl|flex_attention|"
    r"wrap_with_set_grad_enabled|wrap_with_autocast)"
)
_PYTHON = re.compile(
    r"_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|not_|xor|"
    r"lshift|rshift)|math\.(ceil|floor|trunc|sqrt)|torch\.sym_(int|float|max|min|not|ite|sum|sqrt)"
)

# What sizes are computed with: symbols such as s77 and u0, SymPy's own classes, PyTorch's functions of sizes.
_SYMBOL = re.compile(r"[suz][a-z]*\d{1,9}|[+-]?\d{1,40}(?:\.\d{0,40})?(?:e[+-]?\d{1,3})?", re.ASCII)
_SIZE_FUNCTIONS = frozenset(
    {
        *("FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt"),
        *("CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv"),
        *("IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal"),
        *("ToFloat", "Identity", "Max", "Min", "Abs", "And", "Or", "Not", "Eq", "Ne", "Lt", "Le", "Gt", "Ge"),
        *("floor", "ceiling", "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Piecewise"),
        *("Equality", "Unequality", "StrictLessThan", "LessThan", "GreaterThan", "StrictGreaterThan"),
        *("ExprCondPair", "Tuple", "BooleanTrue", "BooleanFalse"),
    }
)

_TREES = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})
_KEY = re.compile(r"[\w.\- ]{1,256}", re.ASCII)

# Texts that become values of the program, never code of it; and those that are not looked at when it is loaded.
_VALUES = frozenset({"as_string", "as_strings"})
_UNUSED = frozenset({"metadata", "treespec_namedtuple_fields"})
_NATIVE = frozenset({"as_custom_obj", "as_operator", "custom_obj"})
_DEPTH = 200


def check(program: bytes, configs: Mapping[str, bytes]) -> None:
    """``program``: the archive's JSON; ``configs``: those of its weights and constants. Raises ModelLoadError."""
    try:
        _walk(_json(program), "", 0)
        for text in configs.values():
            _payload(_json(text))
    except (ValueError, RecursionError):
        raise ModelLoadError("the program in it is damaged") from None


def _json(text: bytes) -> Any:
    return json.loads(text.decode())


def _walk(value: Any, key: str, depth: int, constant: bool = False) -> None:
    """``constant``: within an input's fixed value, which becomes code of the check of inputs."""
    if depth > _DEPTH:
        raise ModelLoadError("the program in it is nested too deeply")
    if isinstance(value, str):
        _text(key, value, constant)
    elif isinstance(value, list):
        for item in value:
            _walk(item, key, depth + 1, constant)
    elif isinstance(value, dict):
        for inner, item in value.items():
            if inner in _UNUSED:
                continue
            if inner in _NATIVE and item:
                raise ModelLoadError("it holds native or Python objects, which are never loaded")
            if not _NAME.fullmatch(inner):
                raise _strange("a key", inner)
            _walk(item, inner, depth + 1, constant or inner == "constant_input")


def _text(key: str, text: str, constant: bool) -> None:
    if key in _VALUES and not constant:
        return
    if key == "guards_code":
        _arithmetic(text, "a condition", of_inputs=True)
    elif key == "target":
        _target(text)
    elif key == "expr_str":
        _arithmetic(text, "a size")
    elif key in ("in_spec", "out_spec"):
        if text:
            _tree(text)
    elif key in ("as_float", "as_floats"):
        if not _FLOAT.fullmatch(text):
            raise _strange("a number", text)
    elif key == "torch_version":
        if not _VERSION.fullmatch(text):
            raise _strange("a version", text)
    elif not _NAME.fullmatch(text):
        raise _strange(f"'{key}'" if key else "a text", text)


def _target(text: str) -> None:
    found = _OPERATOR.fullmatch(text)
    if found and not operator_fault(f"aten::{found[2]}") and not _dunder(found[2]) and not _dunder(found[3]):
        return
    if _HIGHER.fullmatch(text) or _PYTHON.fullmatch(text):
        return
    raise ModelLoadError(
        f"it calls {_shown(text)}, which is not an operator of PyTorch's that may be run; "
        "libraries of operators are never loaded"
    )


def _dunder(name: str) -> bool:
    """Operators have such names too (``__and__``); what is left are Python's own attributes."""
    return name.startswith("__") and name.strip("_") not in (
        *("and", "or", "xor", "lshift", "rshift"),
        *("iand", "ior", "ixor", "ilshift", "irshift"),
    )


_PLAIN_NODES = (
    *(ast.Expression, ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Load),
    *(ast.boolop, ast.operator, ast.unaryop, ast.cmpop),
)
_NAMES = frozenset({"true", "false", "oo", "int_oo"})


def _arithmetic(text: str, what: str, *, of_inputs: bool = False) -> None:
    """What sizes are: sums and the like of symbols. ``of_inputs``: what an export demands of its inputs instead, such
    as ``L['x'].size()[0] % 2 == 0``. PyTorch makes code of both, so nothing else may be in them."""
    try:
        waiting: list[ast.AST] = [ast.parse(text, mode="eval")]
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _strange(what, text) from None
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr="size"), args=[], keywords=[]) if of_inputs:
                waiting.append(inner)
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)) if of_inputs and _plain_key(key):
                waiting.append(inner)
            case ast.Name(id="L") if of_inputs:
                pass
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _SIZE_FUNCTIONS:
                waiting += [*args, *(keyword.value for keyword in keywords)]
            case ast.Name(id=name) if name in _NAMES or (_SYMBOL.fullmatch(name) and not of_inputs):
                pass
            case ast.Constant(value=str(value)) if not of_inputs and _SYMBOL.fullmatch(value):
                pass
            case ast.Constant(value=int() | float()):
                pass
            case _ if isinstance(node, _PLAIN_NODES) and not isinstance(node, ast.Pow):
                waiting += ast.iter_child_nodes(node)
            case _:
                raise _strange(what, text)


def _plain_key(key: object) -> bool:
    return isinstance(key, int) or (isinstance(key, str) and bool(_KEY.fullmatch(key)))


def _tree(text: str) -> None:
    """How inputs or outputs are nested: only plain tuples, lists and dictionaries with plain keys."""
    waiting, seen = [_json(text.encode())], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if isinstance(value, list):  # the format's version, and the tree
            waiting += value
        elif isinstance(value, dict):
            kind = value.get("type")
            if kind is not None and kind not in _TREES:
                raise ModelLoadError(
                    f"its inputs or outputs are nested in a {_shown(kind)}; "
                    "use tensors, tuples, lists or dictionaries"
                )
            _keys(value.get("context"))
            waiting += value.get("children_spec") or []
        elif isinstance(value, str):
            raise _strange("a tree", value)
        if seen > 10_000:
            raise ModelLoadError("its inputs or outputs are nested too deeply")


def _keys(context: Any) -> None:
    """What a tree says beside its kind: nothing, or a JSON list of keys."""
    if context is None:
        return
    keys = json.loads(context) if isinstance(context, str) else context
    if keys is None:
        return
    if not isinstance(keys, list) or not all(
        isinstance(k, int) or (isinstance(k, str) and _KEY.fullmatch(k)) for k in keys
    ):
        raise _strange("a tree's key", context)


def _payload(config: Any) -> None:
    """Weights and constants are plain tensors; what is pickled is refused."""
    entries = config.get("config", {}) if isinstance(config, dict) else {}
    for name, entry in entries.items():
        if not isinstance(entry, dict) or not _NAME.fullmatch(name):
            raise _strange("a weight", name)
        path = str(entry.get("path_name", ""))
        if entry.get("use_pickle") or not re.fullmatch(r"(weight|tensor)_\d+", path):
            raise ModelLoadError(
                f"'{_shown(name)}' in it is pickled, which is never loaded, since reading it may run any code"
            )
        _walk(entry, "", 0)


def _strange(what: str, text: object) -> ModelLoadError:
    return ModelLoadError(f"{what} in its program is not one that torch.export writes: {_shown(text)}")


def _shown(text: object) -> str:
    line = "".join(c if c.isprintable() else "?" for c in str(text))
    return line if len(line) <= 80 else f"{line[:80]}…"
