"""Messages → the prompt's text, with the chat template that lies beside the model: Jinja, in its sandbox.

As the library that these templates are written for has it: ``messages``, ``tools``, ``add_generation_prompt`` and the
special tokens by name; ``raise_exception``, ``strftime_now``, ``tojson``, ``break`` and ``continue``, and
``{% generation %}``, which changes nothing.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from appliance.errors import InvalidInput, ModelLoadError
from appliance.pipelines.language.tokenizer import read_beside

_MOST_TEMPLATE = 256 << 10
_MOST_CONFIG = 16 << 20
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class _Named(msgspec.Struct):
    name: str
    template: str


class _Written(msgspec.Struct):
    content: str


class _Config(msgspec.Struct):
    chat_template: str | list[_Named] | None = None
    bos_token: str | _Written | None = None
    eos_token: str | _Written | None = None
    pad_token: str | _Written | None = None
    unk_token: str | _Written | None = None


class Refused(Exception):
    """A template's own ``raise_exception``."""


class ChatTemplate:
    """``sources``: ``default`` and perhaps ``tool_use``. ``tokens``: special tokens by name.

    ``variables``: the names that it looks at; ``taken``: those that a request cannot give a meaning to.
    """

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        """ModelLoadError for what is no template."""
        from jinja2 import TemplateError, meta

        self._environment = environment = _environment()
        self._tokens = dict(tokens)
        self.taken = frozenset({"messages", "tools", "add_generation_prompt", *_TOKENS})
        self.source = "\n".join(sources.values())
        try:
            self._templates = {name: environment.from_string(source) for name, source in sources.items()}
            self.variables = frozenset[str]().union(
                *(meta.find_undeclared_variables(environment.parse(source)) for source in sources.values())
            )
        except (TemplateError, RecursionError) as error:
            raise ModelLoadError(f"the chat template cannot be read: {str(error)[:200]}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        more: Mapping[str, Any],
        most: int,
    ) -> str | None:
        """The prompt up to where the model is to speak; None for one of over ``most`` characters.

        InvalidInput for messages that the template refuses or cannot render.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        pieces, size = [], 0
        self._environment.allow(most)
        try:
            for piece in self._templates[name].generate(
                **{**self._tokens, **more, "messages": messages, "tools": tools, "add_generation_prompt": True}
            ):
                size += len(piece)
                if size > most:
                    return None
                pieces.append(piece)
        except Refused as error:
            raise InvalidInput(f"the model's chat template refuses: {str(error)[:300]}", param="messages") from None
        except Exception:  # noqa: BLE001 - a template may do anything that Python can raise
            words = "the model's chat template cannot render these messages"
            raise InvalidInput(words, param="messages") from None
        return "".join(pieces)


def template_beside(folders: Sequence[Path]) -> ChatTemplate | None:
    """From ``chat_template.jinja``, else ``tokenizer_config.json``; None if neither has one. ModelLoadError."""
    config = _Config()
    text = read_beside(folders, "tokenizer_config.json", _MOST_CONFIG)
    if text is not None:
        try:
            config = msgspec.json.decode(text, type=_Config)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ModelLoadError(f"tokenizer_config.json: {str(error)[:200]}") from None
    own = read_beside(folders, "chat_template.jinja", _MOST_TEMPLATE)
    sources = {"default": own} if own is not None else _sources(config.chat_template)
    if "default" not in sources:
        return None
    tokens = {name: _text(value) for name in _TOKENS if (value := getattr(config, name)) is not None}
    return ChatTemplate(sources, tokens)


def _sources(told: str | list[_Named] | None) -> dict[str, str]:
    if told is None:
        return {}
    found = {"default": told} if isinstance(told, str) else {entry.name: entry.template for entry in told}
    if sum(map(len, found.values())) > _MOST_TEMPLATE:
        raise ModelLoadError(f"the chat template is larger than {_MOST_TEMPLATE >> 10} KB")
    return {name: found[name] for name in ("default", "tool_use") if name in found}


def _text(token: str | _Written) -> str:
    return token if isinstance(token, str) else token.content


def _environment() -> Any:
    from jinja2.ext import loopcontrols

    from appliance.pipelines.language.template_sandbox import Generation, Sandbox

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    environment.filters["tojson"] = environment.walked(_tojson)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> str:
    raise Refused(message)


def _now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)
