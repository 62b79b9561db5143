"""One pass over the fields of an ONNX model.

Field numbers: ``onnx.proto``, package ``onnx``, IR version 3 and up.
"""

from pathlib import Path

import msgspec

from appliance.errors import ModelLoadError
from appliance.models.inside import check_external
from appliance.models.onnx_wire import BYTES, VARINT, Wire

# ONNX Runtime parses with protobuf's default limit of 100 nested messages; each graph takes three of them.
MAX_GRAPHS = 32

# What is kept of a file is bounded, so that one made for it cannot fill the memory.
_MAX_TEXT = 2048
_MAX_METADATA = 4 << 20
_MAX_KINDS = 10_000  # of operators, functions, domains, external files
_MAX_ATTRIBUTES = 10_000  # of one node
_MAX_ENTRIES = 256  # of one tensor's external data

_BUILT_IN = frozenset(
    {
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
        "com.microsoft.experimental",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
    }
)

# Attributes of a compiled context (EPContext) that name a file.
_CONTEXT_FILES = frozenset({b"ep_cache_context", b"onnx_model_filename"})


class OnnxFacts(msgspec.Struct, frozen=True):
    """``opsets``: domain → version, the default domain as ``ai.onnx``. ``external``: the files that hold
    weights, relative to the model's, sorted. ``custom_domains``: domains of operators that are neither built
    in nor functions of the file. ``function_domains``: domains of the file's own functions."""

    ir_version: int
    opsets: dict[str, int]
    producer: str
    external: tuple[str, ...]
    nodes: int
    custom_domains: tuple[str, ...]
    function_domains: tuple[str, ...]
    metadata: dict[str, str]

    def missing_operators(self) -> str | None:
        """Why the model cannot run here, when it needs operators that are not built in; else None."""
        if not self.custom_domains:
            return None
        domains = ", ".join(f"'{domain}'" for domain in self.custom_domains)
        return (
            f"operator library needed: domain {domains} is not built in, "
            "and libraries from model folders are never loaded"
        )


class Walk:
    """One pass over a file. What occurs twice is looked at twice: protobuf would merge it."""

    def __init__(self, wire: Wire, path: Path, root: Path) -> None:
        self._wire = wire
        self._path = path
        self._root = root
        self._depth = 0
        self._metadata_left = _MAX_METADATA
        self._sizes: dict[str, int] = {}  # of external files, by location
        self._nodes = 0
        self._used: set[tuple[str, str]] = set()  # (domain, operator)
        self._functions: set[tuple[str, str]] = set()

    def model(self, size: int) -> OnnxFacts | None:
        """The facts, or None when there is no graph."""
        ir_version, producer, version, graphs = 0, "", "", 0
        opsets: dict[str, int] = {}
        metadata: dict[str, str] = {}
        for number, wire, a, b in self._wire.fields(0, size):
            if wire == VARINT and number == 1:
                ir_version = a
            elif wire != BYTES:
                continue
            elif number == 2:
                producer = self._text(a, b)
            elif number == 3:
                version = self._text(a, b)
            elif number == 7:
                graphs += 1
                self._graph(a, b)
            elif number == 8:
                self._opset(a, b, opsets)
            elif number == 14:
                self._metadata(a, b, metadata)
            elif number == 20:
                self._training(a, b)
            elif number == 25:
                self._function(a, b, opsets)
        if not graphs:
            return None
        unknown = {domain for domain, operator in self._used - self._functions if domain not in _BUILT_IN}
        return OnnxFacts(
            ir_version=ir_version,
            opsets=opsets,
            producer=f"{producer} {version}".strip(),
            external=tuple(sorted(self._sizes)),
            nodes=self._nodes,
            custom_domains=tuple(sorted(unknown)),
            function_domains=tuple(sorted({domain for domain, _ in self._functions})),
            metadata=metadata,
        )

    def _raw(self, a: int, b: int) -> bytes:
        return self._wire.read(a, min(b, a + _MAX_TEXT))

    def _text(self, a: int, b: int) -> str:
        """Names, domains and other short text: its first 2 KB, with what is not UTF-8 replaced."""
        return self._raw(a, b).decode("utf-8", "replace")

    def _metadata(self, a: int, b: int, metadata: dict[str, str]) -> None:
        """Adds one pair; past 4 MB in all they are left out. Some exporters put a whole alphabet into one."""
        key, value = "", ""
        for number, wire, start, end in self._wire.fields(a, b):
            if number == 1 and wire == BYTES:
                key = self._text(start, end)
            elif number == 2 and wire == BYTES and end - start <= self._metadata_left:
                self._metadata_left -= end - start
                value = self._wire.read(start, end).decode("utf-8", "replace")
        if len(metadata) < _MAX_ENTRIES:
            metadata[key] = value

    def _bound(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise ModelLoadError(f"{self._path.name}: it has more than {most} {what}")

    def _opset(self, a: int, b: int, opsets: dict[str, int]) -> None:
        domain, version = "", 0
        for number, wire, start, end in self._wire.fields(a, b):
            if number == 1 and wire == BYTES:
                domain = self._text(start, end)
            elif number == 2 and wire == VARINT:
                version = start
        domain = domain or "ai.onnx"
        opsets[domain] = max(version, opsets.get(domain, 0))
        self._bound(len(opsets), _MAX_KINDS, "operator domains")

    def _training(self, a: int, b: int) -> None:
        for number, wire, start, end in self._wire.fields(a, b):
            if wire == BYTES and number in (1, 2):
                self._graph(start, end)

    def _function(self, a: int, b: int, opsets: dict[str, int]) -> None:
        name = domain = ""
        for number, wire, start, end in self._wire.fields(a, b):
            if wire != BYTES:
                continue
            if number == 1:
                name = self._text(start, end)
            elif number == 7:
                self._node(start, end)
            elif number == 9:
                self._opset(start, end, opsets)
            elif number == 10:
                domain = self._text(start, end)
            elif number == 11:
                self._attribute(start, end)
        self._functions.add((domain or "ai.onnx", name))
        self._bound(len(self._functions), _MAX_KINDS, "functions")

    def _graph(self, a: int, b: int) -> None:
        self._depth += 1
        if self._depth > MAX_GRAPHS:
            raise ModelLoadError(f"{self._path.name}: graphs are nested more than {MAX_GRAPHS} deep")
        for number, wire, start, end in self._wire.fields(a, b):
            if wire != BYTES:
                continue
            if number == 1:
                self._node(start, end)
            elif number == 5:
                self._tensor(start, end)
            elif number == 15:
                self._sparse(start, end)
        self._depth -= 1

    def _node(self, a: int, b: int) -> None:
        operator = domain = ""
        context = False
        attributes: list[tuple[int, int]] = []
        for number, wire, start, end in self._wire.fields(a, b):
            if wire != BYTES:
                continue
            if number == 4:
                operator = self._text(start, end)
                context = context or operator == "EPContext"
            elif number == 5:
                attributes.append((start, end))
                self._bound(len(attributes), _MAX_ATTRIBUTES, "attributes on one node")
            elif number == 7:
                domain = self._text(start, end)
        self._nodes += 1
        self._used.add((domain or "ai.onnx", operator))
        self._bound(len(self._used), _MAX_KINDS, "kinds of operators")
        for start, end in attributes:
            self._attribute(start, end)
        if context:
            self._context(attributes)

    def _attribute(self, a: int, b: int) -> None:
        for number, wire, start, end in self._wire.fields(a, b, skip_numbers=True):
            if wire != BYTES:
                continue
            if number in (5, 10):
                self._tensor(start, end)
            elif number in (6, 11):
                self._graph(start, end)
            elif number in (22, 23):
                self._sparse(start, end)

    def _context(self, attributes: list[tuple[int, int]]) -> None:
        """A compiled context is in the node, or in a file beside the model that the node names."""
        embedded, files = True, []
        for a, b in attributes:
            name, text, whole = b"", (0, 0), 1
            for number, wire, start, end in self._wire.fields(a, b):
                if number == 1 and wire == BYTES:
                    name = self._raw(start, end)
                elif number == 3 and wire == VARINT:
                    whole = start & (2**64 - 1)
                elif number == 4 and wire == BYTES:
                    text = (start, end)
            if name == b"embed_mode" and whole == 0:
                embedded = False
            elif name in _CONTEXT_FILES and text[0] < text[1]:
                files.append((name, text))
        for name, text in files:
            if name != b"ep_cache_context" or not embedded:
                self._external(*text, what="compiled context")

    def _sparse(self, a: int, b: int) -> None:
        for number, wire, start, end in self._wire.fields(a, b):
            if wire == BYTES and number in (1, 2):
                self._tensor(start, end)

    def _tensor(self, a: int, b: int) -> None:
        """``data_location`` is not asked: what names a file must be fit to be read, in any case."""
        entries: list[tuple[str, tuple[int, int]]] = []
        for number, wire, start, end in self._wire.fields(a, b, skip_numbers=True):
            if number == 13 and wire == BYTES:
                key, value = "", (start, start)
                for inner, kind, first, last in self._wire.fields(start, end):
                    if kind == BYTES and inner == 1:
                        key = self._text(first, last)
                    elif kind == BYTES and inner == 2:
                        value = (first, last)
                entries.append((key, value))
                self._bound(len(entries), _MAX_ENTRIES, "entries in one tensor's external data")
        if not entries:
            return
        numbers = {"offset": 0, "length": 0}
        for key, value in entries:
            if key in numbers:
                text = self._text(*value)
                if not (text.isascii() and text.isdigit() and len(text) <= 19):
                    raise ModelLoadError(f"{self._path.name}: external data: {key} is not a number of bytes")
                numbers[key] = max(numbers[key], int(text))
        for key, value in entries:
            if key == "location":
                size = self._external(*value, what="external data")
                if numbers["offset"] + numbers["length"] > size:
                    raise ModelLoadError(
                        f"{self._path.name}: external data '{self._text(*value)}' has {size} bytes, but a tensor "
                        f"needs {numbers['length']} from byte {numbers['offset']}; the file is not whole"
                    )

    def _external(self, a: int, b: int, what: str) -> int:
        try:
            # One that is cut off here is too long to be accepted in any case.
            location = self._raw(a, b).decode("utf-8", "strict" if b - a <= _MAX_TEXT else "replace")
        except UnicodeDecodeError:
            raise ModelLoadError(f"{self._path.name}: {what}: the location is not UTF-8 text") from None
        size = self._sizes.get(location)
        if size is None:
            try:
                size = check_external(self._path.parent, self._root, location, what)
            except ModelLoadError as error:
                raise ModelLoadError(f"{self._path.name}: {error.message}") from None
            self._sizes[location] = size
            self._bound(len(self._sizes), _MAX_KINDS, "external files")
        return size
