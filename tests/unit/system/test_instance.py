"""One program per port and user."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from appliance.system.instance import AlreadyRunning, Instance, Running, find_running

ROOT = Path(__file__).resolve().parents[3]


def announce(instance: Instance, port: int = 11711) -> Running:
    return instance.announce(host="127.0.0.1", port=port, url=f"http://127.0.0.1:{port}", version="1.2.3")


def test_the_second_one_is_told_about_the_first(tmp_path: Path) -> None:
    first = Instance(tmp_path / "state", 11711)
    with pytest.raises(AlreadyRunning, match=r"running already$") as early:
        Instance(tmp_path / "state", 11711)
    assert early.value.running is None
    running = announce(first)
    with pytest.raises(AlreadyRunning, match=r"at http://127\.0\.0\.1:11711") as late:
        Instance(tmp_path / "state", 11711)
    assert late.value.running == running
    first.release()
    first.release()
    Instance(tmp_path / "state", 11711).release()


def test_other_ports_and_other_folders_are_other_programs(tmp_path: Path) -> None:
    held = [Instance(tmp_path, 1), Instance(tmp_path, 2), Instance(tmp_path / "other", 1)]
    for instance in held:
        instance.release()


def test_the_port_file_says_where_and_is_gone_afterwards(tmp_path: Path) -> None:
    instance = Instance(tmp_path, 0)
    running = announce(instance, 40123)
    text = (tmp_path / "instance-0.json").read_bytes()
    assert msgspec.json.decode(text) == {
        "host": "127.0.0.1",
        "port": 40123,
        "url": "http://127.0.0.1:40123",
        "pid": os.getpid(),
        "started": running.started,
        "version": "1.2.3",
        "key": "",
    }
    if sys.platform != "win32":
        assert (tmp_path / "instance-0.json").stat().st_mode & 0o077 == 0
    assert find_running(tmp_path) == running
    assert find_running(tmp_path, 0) == running
    assert find_running(tmp_path, 11711) is None
    instance.release()
    assert find_running(tmp_path) is None
    assert [file.name for file in tmp_path.iterdir()] == ["instance-0.lock"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    instance = Instance(tmp_path, 1)
    announce(instance)
    over = threading.Event()
    bad: list[bytes] = []

    def read() -> None:
        while not over.is_set():
            text = (tmp_path / "instance-1.json").read_bytes()
            if not text.endswith(b"}\n"):
                bad.append(text)

    reader = threading.Thread(target=read)
    reader.start()
    for port in range(200):
        announce(instance, port)
    over.set()
    reader.join()
    instance.release()
    assert bad == []


def test_the_newest_of_several_is_found(tmp_path: Path) -> None:
    one, two = Instance(tmp_path, 1), Instance(tmp_path, 2)
    first = announce(one, 1)
    time.sleep(0.01)
    second = announce(two, 2)
    assert find_running(tmp_path) == second
    assert find_running(tmp_path, 1) == first
    one.release()
    two.release()


def test_a_killed_program_leaves_nothing_that_counts(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from appliance.system.instance import Instance\n"
        "i = Instance(Path(sys.argv[1]), 7); i.announce(host='h', port=7, url='u', version='v')\n"
        "print('up', flush=True); time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"up"
        found = find_running(tmp_path)
        assert found is not None
        assert found.pid == process.pid
        with pytest.raises(AlreadyRunning):
            Instance(tmp_path, 7)
        process.kill()
    assert find_running(tmp_path) is None
    Instance(tmp_path, 7).release()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": "x"}'])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "instance-1.json").write_text(text)
    assert find_running(tmp_path) is None


def test_a_number_that_another_process_has_now_does_not_count(tmp_path: Path) -> None:
    old = Running(host="h", port=1, url="u", pid=os.getpid(), started=time.time() - 10**7, version="v")
    (tmp_path / "instance-1.json").write_bytes(msgspec.json.encode(old))
    assert find_running(tmp_path) is None
    assert find_running(tmp_path / "not there") is None
