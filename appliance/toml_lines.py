"""On which line each key of a TOML text stands. The standard library's reader does not tell."""

import re
import tomllib
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
      (?P<string> \"\"\"(?:\\.|[^\\])*?\"{3,5} | '''.*?'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*' )
    | (?P<comment> \#[^\n]* )
    | (?P<mark> [\[\]{}=,.\n] )
    | (?P<bare> [A-Za-z0-9_+:-]+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)

_Path = tuple[str, ...]


def key_lines(text: str) -> dict[_Path, int]:
    """Path of a key (``("batching", "max")``) → line, counted from 1; of a table its header's line.
    Of tables in a list (``[[inputs]]``) each has its place in the path: ``("inputs", "0", "name")``.

    ``text`` must be TOML that was read before: faults of syntax are not looked for.
    """
    found: dict[_Path, int] = {}
    tokens = _tokens(text)
    table: _Path = ()
    seen: dict[_Path, int] = {}
    for kind, word, line in tokens:
        if word == "[" and kind == "mark":
            table, listed = _header(tokens)
            found.setdefault(table, line)
            if listed:
                seen[table] = seen.get(table, -1) + 1
                table = (*table, str(seen[table]))
                found[table] = line
        elif kind in ("bare", "string"):
            key = (*table, *_key(word, tokens))
            found.setdefault(key, line)
            _value(key, tokens, found)
    return found


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    line = 1
    for match in _TOKEN.finditer(text.replace("\r\n", "\n")):
        kind, word = match.lastgroup or "", match[0]
        if kind not in ("comment", "other"):
            yield kind, word, line
        line += word.count("\n")


def _name(word: str) -> str:
    return str(tomllib.loads(f"x = {word}")["x"]) if word[0] in "\"'" else word


def _header(tokens: Iterator[tuple[str, str, int]]) -> tuple[_Path, bool]:
    """The table's path, and whether it is one of a list (``[[x]]``); the opening bracket is read already."""
    parts: list[str] = []
    listed = False
    for kind, word, _ in tokens:
        if word == "\n":
            break
        if kind in ("bare", "string"):
            parts.append(_name(word))
        elif word == "[":
            listed = True
    return tuple(parts), listed


def _key(first: str, tokens: Iterator[tuple[str, str, int]]) -> _Path:
    """The rest of a dotted key, up to and with its ``=``."""
    parts = [_name(first)]
    for kind, word, _ in tokens:
        if kind == "mark" and word == "=":
            break
        if kind in ("bare", "string"):
            parts.append(_name(word))
    return tuple(parts)


def _value(key: _Path, tokens: Iterator[tuple[str, str, int]], found: dict[_Path, int]) -> None:
    """Reads a value to the end of its line; keys of inline tables in it are noted too."""
    # One item per open bracket: the path of an inline table, or None for a list.
    within: list[_Path | None] = []
    at, expects_key = key, False
    for kind, word, line in tokens:
        if kind != "mark":
            base = within[-1] if within else None
            if expects_key and base is not None:
                at = (*base, *_key(word, tokens))
                found.setdefault(at, line)
                expects_key = False
        elif word == "{":
            within.append(at)
            expects_key = True
        elif word == "[":
            within.append(None)
            expects_key = False
        elif word in "]}" and within:
            within.pop()
            expects_key = False
        elif word == ",":
            expects_key = bool(within) and within[-1] is not None
        elif word == "\n" and not within:
            return
