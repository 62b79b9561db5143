"""The checks of the place the program runs in, where something is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from appliance.selftest import command, machine
from appliance.selftest.context import Context
from appliance.selftest.report import Line, ok
from appliance.selftest.runner import Check
from appliance.settings import Settings
from appliance.system import autostart
from appliance.system.autostart import AutostartError, FakePlace


@pytest.fixture
def context(tmp_path: Path) -> Context:
    settings = Settings.model_construct(state=tmp_path / "user/state", models=tmp_path / "user/models")
    (tmp_path / "own").mkdir()
    return Context(settings, tmp_path / "own")


def test_folders_leave_nothing_behind(context: Context, tmp_path: Path) -> None:
    finding = machine.folders(context)
    assert finding.verdict in ("ok", "warning")  # how full this machine's disk is decides
    assert not (tmp_path / "user").exists()
    (tmp_path / "user/state").mkdir(parents=True)
    (tmp_path / "user/state/kept").touch()
    machine.folders(context)
    assert [f.name for f in (tmp_path / "user/state").iterdir()] == ["kept"]


def test_a_folder_that_cannot_be_written(context: Context, tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user/models").write_text("in the way")
    finding = machine.folders(context)
    assert finding.verdict == "failed"
    assert "models" in finding.found and "logs" not in finding.found and finding.cure


def test_a_full_disk(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: type("Usage", (), {"free": 5_000_000}))
    finding = machine.folders(context)
    assert finding.verdict == "warning" and "5 MB" in finding.found


def test_long_paths(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.long_paths(context).verdict == "ok"
    assert context.models is not None
    model = context.models / "far/1/model.onnx"
    assert model.is_file() and len(str(model)) > 300 and "测试" in str(model)

    def short(folder: Path, *_args: Any, **_more: Any) -> str | None:
        return "The filename or extension is too long" if len(str(folder)) > 260 else None

    context.models = None
    monkeypatch.setattr(machine, "write_fault", short)
    finding = machine.long_paths(context)
    assert finding.verdict == "warning" and "too long" in finding.found and finding.cure
    assert context.models is None
    monkeypatch.setattr(machine, "write_fault", lambda _folder: "Invalid argument")
    assert machine.long_paths(context).verdict == "failed"


def test_settings_that_cannot_be_read(context: Context) -> None:
    assert machine.settings(context).verdict == "ok"
    context.settings_fault = "settings: port: no number"
    assert machine.settings(context).verdict == "failed"


def test_streams(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.streams(context).verdict == "ok"
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", None)
    assert machine.streams(context).found == "stdin, stdout, stderr: None (a windowed program)"


def test_start_at_login(context: Context) -> None:
    own, users = FakePlace(), FakePlace()
    context.autostart, context.users_autostart = own, users
    assert machine.start_at_login(context).found == "set and removed; the user's own is off"
    assert own.written and own.held is None
    users.held = autostart.own_line(users)
    assert machine.start_at_login(context).found == "set and removed; the user's own is on"
    users.held = '"D:\\old\\appliance.exe" run'
    finding = machine.start_at_login(context)
    assert finding.verdict == "warning" and "D:\\old" in finding.found
    assert users.held == '"D:\\old\\appliance.exe" run' and not users.written  # looked at, and left alone


class Deaf(FakePlace):
    """Takes an entry and does not keep it."""

    def write(self, line: str) -> None:
        self.written.append(line)


class Clinging(FakePlace):
    """Keeps an entry whatever is asked."""

    def remove(self) -> None:
        pass


def test_start_at_login_that_does_not_work(context: Context) -> None:
    context.users_autostart = FakePlace()
    context.autostart = Deaf()
    assert "what is read back is None" in machine.start_at_login(context).found
    context.autostart = Clinging()
    assert machine.start_at_login(context).verdict == "failed"
    context.autostart = FakePlace(refuses=AutostartError("managed by somebody"))
    finding = machine.start_at_login(context)
    assert (finding.verdict, finding.found) == ("warning", "managed by somebody")


CPU = {"id": "cpu", "name": "a processor", "kind": "cpu"}
CARD = {"id": "cuda:0", "name": "a card", "kind": "nvml"}
GPU_BUILD = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("said", "cards", "providers", "verdict", "words"),
    [
        (("cuda:0, cpu", "auto", None), [CARD, CPU], GPU_BUILD, "ok", "a card"),
        (("cpu", "auto", None), [CPU], ["CPUExecutionProvider"], "ok", "built for the CPU"),
        (("cpu", "cpu", None), [CARD, CPU], GPU_BUILD, "ok", "as the setting says"),
        (("cpu", "auto", None), [CARD, CPU], ["CPUExecutionProvider"], "warning", "there is a card"),
        (("cpu", "auto", "no driver; install one"), [CPU], GPU_BUILD, "warning", "not CUDA: no driver"),
        (("cpu", "cuda:0", "no driver; install one"), [CPU], GPU_BUILD, "failed", "not CUDA: no driver"),
        (("cpu", "auto", None), [CPU], GPU_BUILD, "warning", "does not say why"),
        ((None, "auto", None), [], [], "ok", "nothing"),
    ],
)
def test_the_device(
    said: tuple[Any, ...], cards: list[dict[str, Any]], providers: list[str], verdict: str, words: str
) -> None:
    about = dict(zip(("running", "policy", "reason"), said, strict=True))
    finding = machine.judge_device(about, cards, providers)
    assert finding.verdict == verdict
    assert words in finding.found
    if said[2]:
        assert finding.cure == "install one"


def test_a_run_leaves_no_folder_and_tells_the_logs_of_a_failure(context: Context) -> None:
    told: list[Line] = []
    folders: list[Path] = []

    def writes(found: Context) -> Any:
        folders.append(found.folder)
        (found.folder / "state/logs").mkdir(parents=True, exist_ok=True)
        (found.folder / "state/logs/engine.log").write_text("\n".join(map(str, range(100))))
        raise OSError("broken")

    checks = [Check("one", 5, lambda _c: ok("fine")), Check("two", 5, writes)]
    report = command.examine(context.settings, None, checks, told.append, 60)
    assert not report.passed and [line.check for line in told] == ["one", "two"]
    assert report.checks[1].found == "OSError: broken"
    assert report.logs["engine.log"].splitlines() == [str(n) for n in range(60, 100)]
    assert not folders[0].exists()
    assert command.examine(context.settings, None, checks[:1], told.append, 60).logs == {}
