"""Which TorchScript may be loaded. Judged by its text before PyTorch compiles it; see ``graph_fault`` for after.

TorchScript is a language: its programs are bound to tensors, but there are a few ways out. A class of the file that
has a ``__setstate__`` runs it while the file is read; objects of PyTorch's C++ classes make themselves from bytes of
the file; some operators read and write files, or talk to other machines.
"""

import re
from collections.abc import Iterable, Mapping

from appliance.errors import ModelLoadError

_AT_LOAD = re.compile(rb"__setstate__")
_NATIVE = re.compile(rb"torch\s*\.\s*classes\b")

NAMESPACES = ("aten", "prim", "quantized", "torchvision")
"""Whose operators may be in a graph."""

_FORBIDDEN = frozenset(
    {
        "aten::save",  # writes a file
        "aten::from_file",  # maps one, and makes it where it is missing
        "prim::PythonOp",
        "prim::IgnoredPythonOp",
        "prim::rpc_async",
        "prim::rpc_remote",
        "prim::rpc_sync",
    }
)


def check(code: Mapping[str, bytes], pickles: Mapping[str, bytes]) -> None:
    """Raises ModelLoadError if loading alone would run something of the file's own, or make native objects."""
    for text in code.values():
        if _AT_LOAD.search(text):
            raise ModelLoadError(
                "a class in it runs code while it is loaded (__setstate__, as eagerly quantized modules have), which "
                "is refused; export it with torch.export instead"
            )
    for text in (*code.values(), *pickles.values()):
        if _NATIVE.search(text):
            raise ModelLoadError(
                "it holds objects of native classes (torch.classes, such as packed quantized weights), which are "
                "never loaded; export it with torch.export instead"
            )


def graph_fault(kinds: Iterable[str]) -> str | None:
    """Why a graph of nodes of these kinds (``aten::add``) may not be run, or None."""
    for kind in kinds:
        namespace = kind.partition("::")[0]
        if kind in _FORBIDDEN or operator_fault(kind):
            return f"it uses the operator {kind}, which reaches outside of the model; it is not run"
        if namespace not in NAMESPACES:
            return f"it uses the operator {kind}; operators of other libraries are never loaded"
    return None


def operator_fault(name: str) -> bool:
    """True for an operator (``aten::from_file.out``) that reads or writes files."""
    return name.partition(".")[0] in _FORBIDDEN
