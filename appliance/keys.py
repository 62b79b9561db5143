"""API keys: who may do what. They are kept as hashes, in a file that only its user may read.

``infer`` may infer and read the state, ``admin`` may do all. A key is 256 random bits, so one round of SHA-256 keeps
it as well as a slow hash would.
"""

import contextlib
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from appliance.system import private
from appliance.system.instance import Running, only_one

Scope = Literal["infer", "admin"]

MOST = 100
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PREFIX = "ia-"  # tells people, and programs that look for secrets in the wrong places, what it is
_WAIT_S = 5.0
_INVITED_S = 60.0
_MOST_INVITED = 16


class KeysError(Exception):
    """The keys cannot be read or changed; the message says why in words, without a path."""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``sha256``: of the key itself, in hexadecimal; ``created`` in seconds since 1970."""

    name: str
    scope: Scope
    sha256: str
    created: float


def new_key() -> str:
    """A fresh one."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest(key: bytes) -> bytes:
    """What is kept and compared of a key."""
    return hashlib.sha256(key).digest()


class KeyFile:
    """``keys.json`` of a state folder."""

    def __init__(self, state: Path) -> None:
        self.path = state / "keys.json"

    def read(self) -> list[Key]:
        """All keys; none if there is no file. Raises KeysError for one that is damaged, or that others may write."""
        try:
            fault = private.fault(self.path)
            if fault is not None:
                raise KeysError(f"keys.json cannot be trusted: {fault}")
            found = msgspec.json.decode(self.path.read_bytes(), type=list[Key])
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise KeysError(f"keys.json cannot be read: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise KeysError(f"keys.json is damaged: {error}") from None
        if any(not re.fullmatch(r"[0-9a-f]{64}", key.sha256) for key in found):
            raise KeysError("keys.json is damaged: a hash has 64 hexadecimal digits")
        return found

    def create(self, scope: Scope, name: str | None = None) -> tuple[Key, str]:
        """A new key: what is kept of it, and the key itself, which nobody can tell again. Raises KeysError."""
        with self._alone():
            keys = self.read()
            taken = {key.name for key in keys}
            if name is None:
                name = next(free for n in range(1, MOST + 2) if (free := f"{scope}-{n}") not in taken)
            if not _NAME.fullmatch(name):
                raise KeysError("a key's name has 1 to 64 letters, digits, dots, dashes or underscores")
            if name in taken:
                raise KeysError(f"there is a key '{name}' already")
            if len(keys) >= MOST:
                raise KeysError(f"there are {MOST} keys already; remove one first")
            secret = new_key()
            made = Key(name, scope, digest(secret.encode()).hex(), round(time.time(), 3))
            self._write([*keys, made])
            return made, secret

    def remove(self, name: str) -> None:
        """Raises KeysError, also if there is none of that name."""
        with self._alone():
            keys = self.read()
            left = [key for key in keys if key.name != name]
            if len(left) == len(keys):
                known = ", ".join(key.name for key in keys) or "none"
                raise KeysError(f"there is no key '{name[:64]}' (known: {known})")
            self._write(left)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time, so that none is lost."""
        until = time.monotonic() + _WAIT_S
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    first = stack.enter_context(only_one(self.path.with_suffix(".lock")))
                except OSError as error:
                    raise KeysError(f"the state folder cannot be written: {error.strerror}") from None
                if first:
                    yield
                    return
            if time.monotonic() > until:
                raise KeysError("another program changes the keys just now; try again")
            time.sleep(0.05)

    def _write(self, keys: list[Key]) -> None:
        try:
            private.write(self.path, msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
        except OSError as error:
            raise KeysError(f"keys.json cannot be written: {error.strerror}") from None


class Keyring:
    """The keys that a running appliance takes. ``local`` is its own one, for programs of its user: it is in the port
    file, and ends with the program.

    ``required``: whether a call needs a key at all. ``generation`` changes with the keys.
    """

    def __init__(self, local: str | None = None) -> None:
        self.local = local or new_key()
        self.required = False
        self.generation = 0
        self._known: tuple[tuple[bytes, Scope], ...] = ()
        self._invited: dict[bytes, float] = {}

    def invite(self, now: float) -> str:
        """A code that is good once, for a minute: it goes into an address that the tray opens in a browser, where a
        key would stay in the history and be seen in the list of processes. ``now``: seconds of any steady clock."""
        code = secrets.token_urlsafe(24)
        while len(self._invited) >= _MOST_INVITED:
            del self._invited[next(iter(self._invited))]
        self._invited[digest(code.encode())] = now + _INVITED_S
        return code

    def welcome(self, code: str, now: float) -> bool:
        """Whether this is such a code; it is used up by that."""
        until = self._invited.pop(digest(code.encode()), None)
        return until is not None and now <= until

    def renew(self, stored: Iterable[Key], own: str | None, always: bool) -> bool:
        """From now on these: those of the file, the setting ``api_key``, the local one. ``always``: a key is needed
        even if there is none. True if that is a change."""
        found: list[tuple[bytes, Scope]] = [(bytes.fromhex(key.sha256), key.scope) for key in stored]
        if own is not None:
            found.append((digest(own.encode()), "admin"))
        required = bool(found) or always
        found.append((digest(self.local.encode()), "admin"))
        known = tuple(found)
        if (known, required) == (self._known, self.required):
            return False
        self._known, self.required = known, required
        self.generation += 1
        return True

    def scope_of(self, given: bytes) -> Scope | None:
        """What the bearer of this key may do; None for no key of ours. Takes as long whatever is given."""
        told, found = digest(given), None
        for known, scope in self._known:
            if hmac.compare_digest(told, known):
                found = scope
        return found


def headers(running: Running | None, api_key: str | None) -> dict[str, str]:
    """What a program of the same user sends to an appliance that runs: its local key, else the setting's."""
    key = (running.key if running else "") or api_key
    return {"Authorization": f"Bearer {key}"} if key else {}
