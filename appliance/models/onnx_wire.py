"""Protobuf's wire format, read from a file without holding it: one window of it at a time.

A model file is mostly weights, and those are not looked at. So this walks the fields by their places in the
file and reads only what is asked for; a file of 2 GB costs a window of memory and a few reads.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

WINDOW = 1 << 18
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# Lists of numbers that are not packed hold a tag before each number. The pattern passes over a run of them at
# the speed of C; a tree ensemble has millions. Tags here are of one byte: field numbers 1 to 15.
_NUMBERS = re.compile(
    rb"(?:[\x08\x10\x18\x20\x28\x30\x38\x40\x48\x50\x58\x60\x68\x70\x78][\x80-\xff]{0,9}[\x00-\x7f]"
    rb"|[\x0d\x15\x1d\x25\x2d\x35\x3d\x45\x4d\x55\x5d\x65\x6d\x75\x7d].{4})+",
    re.DOTALL,
)


class WireError(Exception):
    """The bytes are not protobuf, or end too early. The message says where."""


class Wire:
    """``size`` bytes of an open file. ``most_fields`` bounds the work on a file made to be slow."""

    def __init__(self, file: BinaryIO, size: int, most_fields: int) -> None:
        self.size = size
        self._file = file
        self._left = most_fields
        self._start = 0
        self._window = b""

    def fields(self, start: int, end: int, *, skip_numbers: bool = False) -> Iterator[tuple[int, int, int, int]]:
        """The fields of the message at ``start`` to ``end``: (number, wire type, a, b).

        VARINT: a is the value. BYTES: a to b is where the bytes are. FIXED: a is where they are.
        ``skip_numbers`` passes over numbers of fields 1 to 15 that come in runs.
        """
        at = start
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise WireError("it has more parts than can be checked")
            if skip_numbers:
                self._cover(at)
                begin = at - self._start
                # A number at the window's edge may be cut off there; the next round sees it whole.
                run = _NUMBERS.match(self._window, begin, min(len(self._window), end - self._start))
                if run:
                    at += run.end() - begin
                    continue
            tag, after = self._varint(at, end)
            number, wire = tag >> 3, tag & 7
            if not number or tag > 0xFFFFFFFF:
                raise WireError(f"no field can begin at byte {at}")
            if wire == VARINT:
                value, after = self._varint(after, end)
                yield number, wire, value, 0
            elif wire == BYTES:
                length, after = self._varint(after, end)
                if length > end - after:
                    raise self._cut(at, after + length)
                yield number, wire, after, after + length
                after += length
            elif wire in (FIXED32, FIXED64):
                width = 4 if wire == FIXED32 else 8
                if width > end - after:
                    raise self._cut(at, after + width)
                yield number, wire, after, after + width
                after += width
            else:
                raise WireError(f"no field can begin at byte {at}")
            at = after

    def read(self, start: int, end: int) -> bytes:
        """The bytes themselves; the caller has looked at how many they are."""
        if end - start <= WINDOW // 2:
            self._cover(start, end - start)
            found = self._window[start - self._start : end - self._start]
        else:
            self._file.seek(start)
            found = self._file.read(end - start)
        if len(found) != end - start:
            raise WireError(f"the file ends at byte {start + len(found)}, within a field")
        return found

    def _cut(self, at: int, wanted: int) -> WireError:
        if wanted > self.size:
            return WireError(f"the file ends within the field at byte {at}")
        return WireError(f"the field at byte {at} is longer than what holds it")

    def _cover(self, at: int, count: int = 16) -> None:
        """Moves the window so that ``count`` bytes from ``at`` are in it, as far as the file has them."""
        have = self._start + len(self._window)
        if at < self._start or (at + count > have and have < self.size) or at > have:
            self._file.seek(at)
            self._start, self._window = at, self._file.read(max(WINDOW, count))

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        self._cover(at)
        index, window = at - self._start, self._window
        last = min(len(window), end - self._start)
        value = shift = 0
        while index < last:
            byte = window[index]
            index += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, self._start + index
            shift += 7
            if shift > 63:
                raise WireError(f"no number can be read at byte {at}")
        raise self._cut(at, self._start + last + 1)
