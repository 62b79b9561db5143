"""Jinja's sandbox with what it lacks: a template that comes with a model neither runs on without end nor makes texts
that fill the memory. Each rendering has a ``Budget``; what goes over it raises SecurityError.

Nothing is computed when a template is read (Jinja would compute constants then). A single operation that could make
much of little (a width, a repetition, a join) is looked at before, all others after.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

STEPS = 200_000
"""Turns of loops, calls and filters of one rendering."""

_ONE = 4 << 20  # characters of one text, or entries of one list
_ALL = 256 << 20  # of everything that a rendering makes on its way
_WIDEST = 10_000
_MOST_BITS = 4096
_WIDTH = re.compile(r"\d{5}|\*|\{[^}]*\{")  # in a format: a width of five digits, or one that comes as a value


class Budget:
    """What one rendering has left. ``one``: characters that one text may have."""

    def __init__(self, one: int = 0) -> None:
        self._one = max(one, _ONE)
        self._steps = STEPS
        self._made = _ALL

    def step(self, count: int = 1) -> None:
        self._steps -= count
        if self._steps < 0:
            raise SecurityError("a chat template runs on for too long")

    def make(self, size: int) -> None:
        self._made -= size
        if size > self._one or self._made < 0:
            raise SecurityError("a chat template makes too long a text")

    def walk(self, value: Any) -> None:
        """Before ``value`` is written out: one list may be in another many times."""
        if isinstance(value, dict):
            self.step(len(value))
            for key, entry in value.items():
                self.walk(key)
                self.walk(entry)
        elif isinstance(value, list | tuple):
            self.step(len(value))
            for entry in value:
                self.walk(entry)
        elif isinstance(value, str):
            self.make(len(value))


class _Spent(threading.local):
    budget: Budget | None = None


class Sandbox(ImmutableSandboxedEnvironment):
    """Each rendering begins with ``allow``."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=_written, **options)
        self._spent = _Spent()
        self.filters = {name: self._bounded(name, filter) for name, filter in self.filters.items()}
        self.filters |= {"_counted": self._counted, "_joined": self._joined}
        del self.globals["lipsum"]
        self.concat = self._joined  # type: ignore[method-assign]  # Jinja reads it from the environment

    @property
    def budget(self) -> Budget:
        return self._spent.budget or Budget()

    def allow(self, most: int) -> None:
        """A rendering begins in this thread; ``most``: characters of a text that it is to make."""
        self._spent.budget = Budget(most)

    def walked(self, filter: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that writes its value out."""
        return self._bounded("string", filter)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        found: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        return found

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget = self.budget
        budget.step()
        if operator == "**":
            raise SecurityError("no powers in a chat template")
        if operator == "*":
            for some, times in ((left, right), (right, left)):
                if hasattr(some, "__len__") and isinstance(times, int):
                    budget.make(len(some) * times)
        if operator == "%" and isinstance(left, str):
            _check_widths(left)
            budget.walk(right)
        return self._made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.budget.step()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | bytes):
            args = __self._checked(getattr(__obj, "__name__", ""), owner, args, kwargs)
        return __self._made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """What a template gets for a text's ``format`` and ``format_map``."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            self._checked(value.__name__, value.__self__, args, kwargs)
            return wrapped(*args, **kwargs)

        return bounded

    def _bounded(self, name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
        """A filter with its arguments and its result looked at."""

        @wraps(filter)  # with Jinja's mark of what it wants as its first argument
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            first = 1 if hasattr(filter, "jinja_pass_arg") else 0
            value, more = args[first], args[first + 1 :]
            if name == "join":
                value = list(value)
                self._check_join(str(more[0] if more else kwargs.get("d", "")), value)
            elif name in ("string", "tojson", "pprint", "safe", "escape", "e", "forceescape"):
                self.budget.walk(value)
            else:
                more = self._checked(name, value if isinstance(value, str) else "", more, kwargs)
            return self._made(filter(*args[:first], value, *more, **kwargs))

        return bounded

    def _checked(self, name: str, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a method of a text, or of a filter of that name."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, int) and abs(value) > _WIDEST and name not in ("default", "d", "int", "float"):
                raise SecurityError("a number in a chat template is too large")
        if name in ("format", "format_map"):
            _check_widths(owner)
            self.budget.walk([*args, *kwargs.values()])
        elif name == "join" and args:
            args = (list(args[0]), *args[1:])
            self._check_join(owner, args[0])
        elif name == "replace" and len(args) > 1:
            old, new = str(args[0]), str(args[1])
            self.budget.make(len(owner) + str(owner).count(old) * len(new))
        elif name == "indent":
            self.budget.make(len(owner) + str(owner).count("\n") * _WIDEST)
        elif name == "translate":
            raise SecurityError("no translate in a chat template")
        return args

    def _check_join(self, between: Any, parts: list[Any]) -> None:
        self.budget.walk(parts)
        self.budget.make(sum(len(part) for part in parts if isinstance(part, str)) + len(between) * len(parts))

    def _made(self, value: Any) -> Any:
        if isinstance(value, str | bytes | list | tuple):
            self.budget.make(len(value))
        elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise SecurityError("a number in a chat template is too large")
        return value

    def _counted(self, value: Any) -> Any:
        """What a loop goes over."""
        if hasattr(value, "__len__"):
            self.budget.step(len(value))
            return value
        return self._each(value)

    def _each(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.budget.step()
            yield value

    def _joined(self, parts: Iterable[Any]) -> str:
        texts = []
        for part in parts:
            if not isinstance(part, str):
                self.budget.walk(part)
            texts.append(str(part))
        self.budget.make(sum(map(len, texts)))
        return "".join(texts)


class Generation(Extension):
    """``{% generation %} … {% endgeneration %}``: what is inside, as it is."""

    tags = {"generation"}  # noqa: RUF012 - as the library has it

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Counting(NodeTransformer):
    """Loops go over ``_counted`` values, and ``~`` is ``_joined``."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_joined", [], [], None, None, lineno=node.lineno)


@pass_context  # so that it is not asked when a template is read
def _written(context: Any, value: Any) -> Any:
    """What is about to be written out."""
    if not isinstance(value, str):
        context.environment.budget.walk(value)
    return value


def _check_widths(form: Any) -> None:
    if _WIDTH.search(str(form)):
        raise SecurityError("a width in a chat template is too large")
