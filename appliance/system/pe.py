"""The import table of a Windows program or library (PE format, Microsoft's specification, "The .idata Section")."""

import mmap
import struct
from pathlib import Path

_MOST = 100_000  # names; a file with more is not what it says


def imports(file: Path) -> dict[str, list[str]]:
    """Library → the functions that the file wants of it by name.

    OSError if it cannot be read, ValueError or struct.error if it is no such file.
    """
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Image(data).imports()


class _Image:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        (header,) = struct.unpack_from("<I", data, 0x3C)
        if data[:2] != b"MZ" or data[header : header + 4] != b"PE\0\0":
            raise ValueError("not a Windows library")
        sections, optional_size = struct.unpack_from("<H12xH", data, header + 6)
        self._optional = header + 24
        (magic,) = struct.unpack_from("<H", data, self._optional)
        self._wide = magic == 0x20B  # 64 bit
        at = self._optional + optional_size
        self._sections = [struct.unpack_from("<IIII", data, at + 40 * n + 8) for n in range(sections)]

    def imports(self) -> dict[str, list[str]]:
        directories = self._optional + (112 if self._wide else 96)
        (table,) = struct.unpack_from("<I", self._data, directories + 8)
        found: dict[str, list[str]] = {}
        entry = self._offset(table) if table else None
        while entry is not None and len(found) < _MOST:
            lookup, name, addresses = struct.unpack_from("<I8xII", self._data, entry)
            if name == 0:
                break
            found[self._text(self._offset(name))] = self._functions(self._offset(lookup or addresses))
            entry += 20
        return found

    def _functions(self, at: int) -> list[str]:
        width, form = (8, "<Q") if self._wide else (4, "<I")
        names: list[str] = []
        while len(names) < _MOST:
            (thunk,) = struct.unpack_from(form, self._data, at)
            if thunk == 0:
                break
            if not thunk >> (8 * width - 1):  # by number otherwise
                names.append(self._text(self._offset(thunk & 0x7FFFFFFF) + 2))
            at += width
        return names

    def _offset(self, address: int) -> int:
        for size, start, raw_size, raw in self._sections:
            if start <= address < start + max(size, raw_size):
                return int(address - start + raw)
        raise ValueError("an address outside the file")

    def _text(self, begin: int) -> str:
        end = self._data.find(b"\0", begin)
        if end < 0:
            raise ValueError("a name without an end")
        return self._data[begin:end].decode("ascii", "replace")
