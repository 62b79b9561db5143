"""Get a pack from a web address into a file. An interrupted download goes on where it stopped, now or the next time.

The part that is there is kept under a name made from the address, with the server's mark of its version (ETag, or the
date) beside it: only if the server says that it is still the same file does the rest follow (``Range`` with
``If-Range``, RFC 9110); else it begins anew.
"""

import errno
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx

from appliance.errors import PackError

_TIMEOUT = httpx.Timeout(30.0)  # seconds for a connection, and between two bytes
_TRIES = 6  # in a row without a new byte
_SLACK = 64 << 20  # left free on the disk
_LOCAL = ("127.0.0.1", "localhost", "::1")

Told = Callable[[int, int | None], None]
"""Told how many bytes are there, of how many (None: the server does not say)."""


class _Interrupted(Exception):
    """The connection ended too early; another try may go on."""


def is_address(source: str) -> bool:
    """Whether this is a web address rather than a file."""
    return re.match(r"https?://", source, re.IGNORECASE) is not None


class Download:
    """One address, and the file that it becomes in ``folder``. ``sha256``: of the whole file, where it is known.

    ``client``: a httpx client that follows redirects. ``free``: bytes free on the folder's disk. ``sleep``: between
    tries, 1, 2, 4 … s.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        sha256: str | None,
        *,
        client: httpx.Client,
        free: Callable[[Path], int],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        _check_address(address, sha256)
        self._address = address
        self._sha256 = sha256
        self._client, self._free, self._sleep = client, free, sleep
        name = hashlib.sha256(address.encode()).hexdigest()[:16]
        self.file = folder / f"{name}.part"
        self._mark = folder / f"{name}.mark"

    def run(self, told: Told) -> Path:
        """All of it. Raises PackError in words; what came so far stays for the next time unless it is wrong."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        failures = 0
        while True:
            before = self._size()
            try:
                self._try(told)
                break
            except (_Interrupted, httpx.TransportError) as error:
                failures = failures + 1 if self._size() <= before else 1
                if failures >= _TRIES:
                    raise PackError(
                        f"the download stopped ({error or type(error).__name__}); "
                        "run the same command again: it goes on where it stopped"
                    ) from None
                self._sleep(min(30.0, 2.0 ** (failures - 1)))
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise PackError("the disk is full; make room and run the same command again") from None
                raise PackError(f"the download cannot be written: {error.strerror}") from None
        self._check_hash()
        return self.file

    def forget(self) -> None:
        """Away with what was downloaded."""
        self.file.unlink(missing_ok=True)
        self._mark.unlink(missing_ok=True)

    def _size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def _try(self, told: Told) -> None:
        there = self._size()
        mark = self._mark.read_text("utf-8") if self._mark.exists() else ""
        headers = {"accept-encoding": "identity"}
        if there and mark:
            headers |= {"range": f"bytes={there}-", "if-range": mark}
        with self._answer(headers) as answer:
            if answer.status_code == 416:  # nothing behind what is there: it is all, or of another file
                if _total(answer) != there:
                    self.forget()
                    raise _Interrupted("the server has another file now")
                return
            if answer.status_code == 206 and _start(answer) != there:
                self.forget()
                raise _Interrupted("the server sent another part than was asked for")
            there = there if answer.status_code == 206 else 0
            total = _total(answer)
            if total is not None and self._free(self.file.parent) < total - there + _SLACK:
                raise PackError(f"there is not enough room for a download of {total >> 20} MiB")
            self._mark.write_text(_validator(answer), "utf-8")
            with self.file.open("ab" if there else "wb") as target:
                there = _receive(answer, target, there, total, told)
        if total is not None and there < total:
            raise _Interrupted("the connection ended too early")

    @contextmanager
    def _answer(self, headers: dict[str, str]) -> Iterator[httpx.Response]:
        with self._client.stream("GET", self._address, headers=headers, timeout=_TIMEOUT) as answer:
            _check_address(str(answer.url), self._sha256)
            if answer.status_code >= 500 or answer.status_code == 429:
                raise _Interrupted(f"the server answered {answer.status_code}")
            if answer.status_code not in (200, 206, 416):
                raise PackError(f"the server answered {answer.status_code} {answer.reason_phrase}")
            yield answer

    def _check_hash(self) -> None:
        if self._sha256 is None:
            return
        with self.file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != self._sha256:
            self.forget()
            raise PackError(f"the download has another SHA-256 than was asked for ({found})")


def open_client() -> httpx.Client:
    """A client for downloads: redirects are followed, the system's proxy is used."""
    return httpx.Client(follow_redirects=True)


def _check_address(address: str, sha256: str | None) -> None:
    """What the engine will load must not be changed on its way: https, this machine, or a hash that is known."""
    parts = urlsplit(address)
    if parts.scheme.lower() != "https" and parts.hostname not in _LOCAL and sha256 is None:
        raise PackError("from an address without https a pack is taken only with --sha256")


def _receive(answer: Any, target: IO[bytes], there: int, total: int | None, told: Told) -> int:
    for chunk in answer.iter_raw():
        target.write(chunk)
        there += len(chunk)
        told(there, total)
        if total is not None and there > total:
            raise PackError("the server sent more than it said")
    return there


def _validator(answer: httpx.Response) -> str:
    """What names this version of the file; a weak ETag does not, for parts."""
    tag = str(answer.headers.get("etag", ""))
    return tag if tag and not tag.startswith("W/") else str(answer.headers.get("last-modified", ""))


def _total(answer: httpx.Response) -> int | None:
    """Bytes of the whole file."""
    behind = str(answer.headers.get("content-range", "")).rpartition("/")[2]
    if behind.isdigit():
        return int(behind)
    length = str(answer.headers.get("content-length", ""))
    return int(length) if length.isdigit() and answer.status_code == 200 else None


def _start(answer: httpx.Response) -> int | None:
    found = re.match(r"bytes (\d+)-", str(answer.headers.get("content-range", "")))
    return int(found[1]) if found else None
