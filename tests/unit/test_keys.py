"""Keys: kept as hashes, for their user only, and what each opens."""

import hashlib
import json
import sys
import threading
from pathlib import Path

import pytest

from appliance.keys import MOST, Key, KeyFile, Keyring, KeysError, digest, headers, new_key
from appliance.system.instance import Running

posix = pytest.mark.skipif(sys.platform == "win32", reason="rights of POSIX")


def test_a_key_is_told_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "state")
    assert keys.read() == []
    made, secret = keys.create("infer", "camera")
    assert len(secret) >= 40 and secret.startswith("ia-")
    text = keys.path.read_text()
    assert secret not in text
    (kept,) = json.loads(text)
    assert (kept["name"], kept["scope"]) == ("camera", "infer")
    assert kept["sha256"] == hashlib.sha256(secret.encode()).hexdigest()
    assert keys.read() == [made]
    keys.remove("camera")
    assert keys.read() == []


@posix
def test_only_its_user_may_read_the_file(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    keys.create("admin")
    assert keys.path.stat().st_mode & 0o777 == 0o600
    keys.path.chmod(0o644)
    keys.create("admin")
    assert keys.path.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["keys.json", "keys.lock"]  # no draft is left


@posix
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_trusted(tmp_path: Path, mode: int) -> None:
    keys = KeyFile(tmp_path)
    keys.create("admin")
    keys.path.chmod(mode)
    with pytest.raises(KeysError, match=r"^keys\.json cannot be trusted: others may write it"):
        keys.read()
    with pytest.raises(KeysError, match="cannot be trusted"):
        keys.create("admin")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{}", "[1]", '[{"name": "a"}]',
        '[{"name":"a","scope":"root","sha256":"%s","created":1}]' % ("0" * 64),
        '[{"name":"a","scope":"admin","sha256":"00","created":1}]',
        '[{"name":"a","scope":"admin","sha256":"%s","created":1}]' % ("é" * 32),
    ],
)  # fmt: skip
def test_a_damaged_file_is_a_fault_and_not_no_keys(tmp_path: Path, text: str) -> None:
    keys = KeyFile(tmp_path)
    keys.path.write_text(text, "utf-8")
    keys.path.chmod(0o600)
    with pytest.raises(KeysError, match=r"^keys\.json is damaged") as caught:
        keys.read()
    assert str(tmp_path) not in str(caught.value)


def test_names(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    assert [keys.create(scope)[0].name for scope in ("infer", "infer", "admin")] == ["infer-1", "infer-2", "admin-1"]
    keys.remove("infer-1")
    assert keys.create("infer")[0].name == "infer-1"
    with pytest.raises(KeysError, match="there is a key 'admin-1' already"):
        keys.create("infer", "admin-1")
    for name in ("", "a b", "x" * 65, "ä", "../a"):
        with pytest.raises(KeysError, match="name has 1 to 64"):
            keys.create("infer", name)
    with pytest.raises(KeysError, match=r"there is no key 'nobody' \(known: infer-2, admin-1, infer-1\)"):
        keys.remove("nobody")


def test_there_is_an_end_to_keys(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    keys._write([Key(f"k{n}", "infer", digest(b"%d" % n).hex(), 0.0) for n in range(MOST)])
    keys.path.chmod(0o600)
    with pytest.raises(KeysError, match="there are 100 keys already"):
        keys.create("infer")


def test_changes_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    threads = [threading.Thread(target=KeyFile(tmp_path).create, args=("infer", f"k{n}")) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in KeyFile(tmp_path).read()} == {f"k{n}" for n in range(6)}


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(KeysError, match="the state folder cannot be written"):
        KeyFile(tmp_path / "state").create("infer")


def kept(secret: str, scope: str) -> Key:
    return Key(scope, scope, hashlib.sha256(secret.encode()).hexdigest(), 0.0)  # type: ignore[arg-type]


def test_what_a_key_opens() -> None:
    ring = Keyring("local-one")
    assert (ring.required, ring.scope_of(b"local-one"), ring.generation) == (False, None, 0)
    assert ring.renew([kept("one", "infer"), kept("two", "admin")], "the-setting", False) is True
    assert ring.required and ring.generation == 1
    found = {key: ring.scope_of(key) for key in (b"one", b"two", b"the-setting", b"local-one", b"", b"One", b"one ")}
    assert found == {
        b"one": "infer", b"two": "admin", b"the-setting": "admin", b"local-one": "admin",
        b"": None, b"One": None, b"one ": None,
    }  # fmt: skip
    assert ring.renew([kept("one", "infer"), kept("two", "admin")], "the-setting", False) is False
    assert ring.generation == 1
    assert ring.renew([kept("two", "admin")], None, False) is True
    assert ring.scope_of(b"one") is None and ring.scope_of(b"the-setting") is None and ring.generation == 2


def test_when_a_key_is_needed() -> None:
    ring = Keyring()
    ring.renew([], None, False)
    assert not ring.required
    ring.renew([], None, True)  # others reach it
    assert ring.required and ring.scope_of(ring.local.encode()) == "admin"


def test_a_code_is_good_once_and_for_a_minute() -> None:
    ring = Keyring()
    code, late = ring.invite(100.0), ring.invite(100.0)
    assert not ring.welcome("guess", 100.0)
    assert ring.welcome(code, 159.0)
    assert not ring.welcome(code, 159.0)
    assert not ring.welcome(late, 160.1)
    first, *others = [ring.invite(200.0) for _ in range(17)]
    assert not ring.welcome(first, 200.0), "the oldest makes room"
    assert all(ring.welcome(other, 200.0) for other in others)


def test_keys_are_random() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert Keyring().local != Keyring().local


def test_what_programs_of_the_same_user_send() -> None:
    running = Running(host="h", port=1, url="u", pid=1, started=0.0, version="v", key="its-own")
    assert headers(running, "setting") == {"Authorization": "Bearer its-own"}
    assert headers(None, "setting") == {"Authorization": "Bearer setting"}
    assert headers(Running(host="h", port=1, url="u", pid=1, started=0.0, version="v"), None) == {}
