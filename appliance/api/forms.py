"""The bodies that ``/predict`` takes: multipart, a raw file, text, JSON → items. Pure."""

import base64
import binascii
from collections.abc import Mapping
from email.message import Message
from typing import Any

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from appliance.errors import InputTooLarge, InvalidInput, UnsupportedMedia
from appliance.pipelines.base import Item

_MAX_HEADER = 4096


class JsonBody(msgspec.Struct, forbid_unknown_fields=True):
    """``image``: base64 or a data URL, or several; ``inputs``: name → nested lists."""

    image: str | list[str] | None = None
    text: str | list[str] | None = None
    inputs: dict[str, Any] | None = None
    parameters: dict[str, Any] = {}


_decode = msgspec.json.Decoder(JsonBody).decode


def items(body: bytes | bytearray, content_type: str, query: Mapping[str, str], max_items: int) -> list[Item]:
    """The request's items, at least one. Raises InvalidInput, InputTooLarge, UnsupportedMedia."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _multipart(bytes(body), content_type, query, max_items)
    if not body:
        raise InvalidInput("the body is empty; send a file, or JSON with 'image', 'text' or 'inputs'", param="body")
    if kind == "application/json" or kind.endswith("+json"):
        return _json(body, query, max_items)
    if kind == "text/plain":
        return [Item("text", text=_utf8("text", bytes(body)), parameters=query)]
    # curl's --data-binary sends a form's media type unless told otherwise.
    known = ("", "application/octet-stream", "application/x-www-form-urlencoded")
    if kind in known or kind.startswith(("image/", "audio/")):
        return [Item("body", file=bytes(body), parameters=query)]
    raise UnsupportedMedia(f"Content-Type '{kind[:64]}' is not one that /predict takes", param="Content-Type")


def _utf8(field: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{field} is not UTF-8 text", param=field) from None


def _json(body: bytes | bytearray, query: Mapping[str, str], max_items: int) -> list[Item]:
    try:
        request = _decode(body)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"body: {error}", param="body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not valid JSON: {error}", param="body") from None
    given = [name for name in ("image", "text", "inputs") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidInput(f"the body needs exactly one of 'image', 'text', 'inputs'; it has {given or 'none'}")
    parameters = {**query, **request.parameters}
    if request.inputs is not None:
        return [Item("inputs", inputs=request.inputs, parameters=parameters)]
    value = request.image if request.image is not None else request.text
    several = value if isinstance(value, list) else [value]
    if not several:
        raise InvalidInput(f"'{given[0]}' is an empty list", param=given[0])
    if len(several) > max_items:
        raise InputTooLarge(f"'{given[0]}' has {len(several)} entries, the limit is {max_items}", param=given[0])
    found = []
    for index, entry in enumerate(several):
        field = given[0] if len(several) == 1 else f"{given[0]}[{index}]"
        if given[0] == "text":
            found.append(Item(field, text=str(entry), parameters=parameters))
        else:
            found.append(Item(field, file=_base64(field, str(entry)), parameters=parameters))
    return found


def _base64(field: str, text: str) -> bytes:
    head, comma, data = text.partition(",")
    if comma and head.startswith("data:"):
        if not head.endswith(";base64"):
            raise InvalidInput(f"{field}: a data URL must be base64", param=field)
        text = data
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"{field} is not base64: {error}", param=field) from None


class _Part:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.data = bytearray()

    def disposition(self) -> tuple[str, str | None]:
        """(field name, file name)."""
        message = Message()
        message["content-disposition"] = self.headers.get("content-disposition", "")
        name = message.get_param("name", "", "content-disposition")
        file = message.get_filename()
        return str(name), file


class _Collector:
    """python-multipart's callbacks → parts."""

    def __init__(self, max_parts: int) -> None:
        self.parts: list[_Part] = []
        self.complete = False
        self._max = max_parts
        self._field = bytearray()
        self._value = bytearray()

    def on_part_begin(self) -> None:
        if len(self.parts) >= self._max:
            raise InputTooLarge(f"the form has more than {self._max} parts", param="body")
        self.parts.append(_Part())

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        if len(self._field) + len(self._value) > _MAX_HEADER:
            raise InputTooLarge(f"a form part's header is over {_MAX_HEADER} bytes", param="body")

    def on_header_end(self) -> None:
        self.parts[-1].headers[self._field.decode("latin-1").lower()] = self._value.decode("utf-8", "replace")
        self._field.clear()
        self._value.clear()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].data += data[start:end]

    def on_end(self) -> None:
        self.complete = True


def _multipart(body: bytes, content_type: str, query: Mapping[str, str], max_items: int) -> list[Item]:
    message = Message()
    message["content-type"] = content_type
    boundary = message.get_param("boundary")
    if not boundary or not body:
        raise InvalidInput("the multipart body has no boundary or no content", param="Content-Type")
    collector = _Collector(max_items + 64)
    callbacks: Any = {name: getattr(collector, name) for name in dir(collector) if name.startswith("on_")}
    try:
        parser = MultipartParser(str(boundary).encode("latin-1", "replace"), callbacks)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InvalidInput(f"the multipart body cannot be read: {error}", param="body") from None
    if not collector.complete:
        raise InvalidInput("the multipart body is cut off before its closing boundary", param="body")
    parameters: dict[str, Any] = dict(query)
    files: list[bytes] = []
    texts: list[str] = []
    for part in collector.parts:
        name, filename = part.disposition()
        if filename is not None or name == "file":
            files.append(bytes(part.data))
        elif name == "text":
            texts.append(_utf8("text", bytes(part.data)))
        else:
            parameters[name] = _utf8(name, bytes(part.data))
    if bool(files) == bool(texts):
        raise InvalidInput("the form needs a part 'file' (or several), or a part 'text'", param="file")
    count = len(files) + len(texts)
    if count > max_items:
        raise InputTooLarge(f"the form has {count} items, the limit is {max_items}", param="file")
    if texts:
        return [Item(_nth("text", i, count), text=text, parameters=parameters) for i, text in enumerate(texts)]
    return [Item(_nth("file", i, count), file=data, parameters=parameters) for i, data in enumerate(files)]


def _nth(field: str, index: int, count: int) -> str:
    return field if count == 1 else f"{field}[{index}]"
