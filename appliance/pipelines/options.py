"""Strict reading of what people write: the table ``[pipeline]`` of ``model.toml``, and request parameters."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from appliance.errors import InvalidInput, ModelLoadError
from appliance.models.spec import ModelSpec
from appliance.pipelines.base import Item, PipelineContext

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""A number from 0 to 1."""
Positive = Annotated[int, msgspec.Meta(ge=1)]

S = TypeVar("S", bound=msgspec.Struct)


def parse(context: PipelineContext, form: type[S]) -> S:
    """The ``[pipeline]`` table as ``form``. ModelLoadError naming the key for an unknown key or a bad value."""
    try:
        return msgspec.convert(dict(context.options), form)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        table = _table(path.strip("`"))
        known = _known(form, path.strip("`"))
        hint = f"; known keys: {', '.join(known)}" if "unknown field" in text else ""
        raise ModelLoadError(f"model.toml of '{context.name}', [{table}]: {text}{hint}") from error


def _table(path: str) -> str:
    return "pipeline" + path.removeprefix("$")


def _known(form: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """The keys of the (nested) struct that ``path`` (``$.image``) points at."""
    at: Any = form
    for part in path.removeprefix("$").strip(".").split("."):
        if part:
            at = next((f.type for f in msgspec.structs.fields(at) if f.encode_name == part), None)
        if not (isinstance(at, type) and issubclass(at, msgspec.Struct)):
            return ()
    return tuple(f.encode_name for f in msgspec.structs.fields(at))


def wishes(item: Item, form: type[S]) -> S:
    """The request's own parameters as ``form``; numbers may come as text. InvalidInput naming the parameter."""
    try:
        return msgspec.convert(_given(item.parameters), form, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        name = path.strip("`").removeprefix("$.")
        if not name:  # an unknown one: the text quotes its name
            known = ", ".join(f.encode_name for f in msgspec.structs.fields(form)) or "none"
            name = text.split("`")[1] if "`" in text else "parameters"
            raise InvalidInput(f"'{item.field}': no parameter '{name}' here; known: {known}", param=name) from error
        text = text.replace(" | null", "").replace("`", "")
        raise InvalidInput(f"parameter '{name}': {text[:1].lower()}{text[1:]}", param=name) from error


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def own_spec(context: PipelineContext) -> ModelSpec:
    """The spec of the pipeline's own model; ModelLoadError if it has none."""
    if context.spec is None:
        raise ModelLoadError(
            f"model.toml of '{context.name}': task '{context.options.get('task')}' needs a model file"
        )
    return context.spec


def file_of(item: Item) -> bytes:
    """The item's file; InvalidInput if something else was sent."""
    if item.file is None:
        raise InvalidInput(f"'{item.field}': this model takes an image file", param=item.field)
    return item.file
