"""The diagnostic file: what is in it, what is not, and where it goes."""

import json
import zipfile
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from appliance.cli import main
from appliance.diagnose import save, scrubbed
from appliance.doctor.report import Line, Report
from appliance.settings import Settings


def look(settings: Settings, fault: str | None) -> Report:
    lines = (Line("port", "ok", f"{settings.port} is free ({fault})"),)
    return Report(version="1", started="now", seconds=0.1, passed=True, checks=lines)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("appliance.system.paths.settings_files", lambda: [tmp_path / "u.toml", tmp_path / "s.toml"])
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home" / "anna")
    (tmp_path / "state" / "logs").mkdir(parents=True)
    return Settings(state=tmp_path / "state", api_key="very-secret-key", port=4711)


def unpacked(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as packed:
        assert packed.testzip() is None
        return {name: packed.read(name).decode() for name in packed.namelist()}


def test_what_is_in_it(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "state" / "logs" / "appliance.log").write_text('{"event": "ready"}\n')
    file = save(settings, {"state": "ready"}, tmp_path / "out.zip", "port: not a number", look)
    assert file == tmp_path / "out.zip"
    parts = unpacked(file)
    assert set(parts) == {
        "README.txt",
        "status.json",
        "doctor.json",
        "settings.json",
        "versions.json",
        "logs/appliance.log",
    }
    assert json.loads(parts["status.json"]) == {"state": "ready"}
    assert json.loads(parts["doctor.json"])["checks"][0]["found"] == "4711 is free (port: not a number)"
    told = json.loads(parts["settings.json"])
    assert told["fault"] == "port: not a number"
    rows = {row["name"]: row for row in told["settings"]}
    assert set(rows) == set(Settings.model_fields)
    assert rows["port"] == {"name": "port", "value": 4711, "from": "flag"}
    assert rows["api_key"]["value"] == "(not shown)"
    assert rows["host"]["from"] == "built-in"
    assert json.loads(parts["versions.json"])["packages"]["pydantic"]


def test_none_runs(settings: Settings, tmp_path: Path) -> None:
    parts = unpacked(save(settings, None, tmp_path / "out.zip", None, look))
    assert json.loads(parts["status.json"]) == {"running": False}


def test_no_key_and_no_name_of_a_person_is_in_it(settings: Settings, tmp_path: Path) -> None:
    home = tmp_path / "home" / "anna"
    lines = [
        "Authorization: Bearer abcdefgh12345678",
        "key very-secret-key and ia-abcdefghijklmnopqrstuvwxyz",
        "redis://me:hunter2@host:6379/0",
        f"{home}/models/a.onnx",
        f"{home}bel stays",
    ]
    (tmp_path / "state" / "logs" / "engine.log").write_text("\n".join(lines))
    parts = unpacked(save(settings, {"note": str(home)}, tmp_path / "out.zip", None, look))
    everything = "".join(parts.values())
    for secret in ("abcdefgh12345678", "very-secret-key", "ia-abc", "hunter2", f"{home}/"):
        assert secret not in everything, secret
    assert "~/models/a.onnx" in parts["logs/engine.log"]
    assert "annabel stays" in parts["logs/engine.log"]
    assert json.loads(parts["status.json"]) == {"note": "~"}


def test_windows_paths_are_hidden_in_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Home:
        anchor = "C:\\"

        def __str__(self) -> str:
            return r"C:\Users\Anna"

        def as_posix(self) -> str:
            return "C:/Users/Anna"

    text = json.dumps({"a": r"c:\users\anna\x", "b": "C:/Users/Anna/y"}) + r" C:\Users\Anna\z"
    home: Any = Home()
    assert scrubbed(text, [], home) == json.dumps({"a": r"~\x", "b": "~/y"}) + r" ~\z"


def test_a_home_that_is_the_root_hides_nothing() -> None:
    assert scrubbed("/etc/x", [], Path("/")) == "/etc/x"


def test_logs_are_cut_to_their_ends_and_bounded_together(settings: Settings, tmp_path: Path) -> None:
    logs = tmp_path / "state" / "logs"
    line = "x" * 1023 + "\n"
    for number in range(12):
        (logs / f"appliance.log.{number}").write_text(f"first {number}\n" + line * 2048)  # 2 MiB each
    (logs / "model.onnx").write_text("not a log")
    parts = unpacked(save(settings, None, tmp_path / "out.zip", None, look))
    ends = {name: text for name, text in parts.items() if name.startswith("logs/")}
    assert all("first" not in text and set(text.splitlines()) == {line.strip()} for text in ends.values())
    assert max(map(len, ends.values())) <= 1 << 20
    assert 7 << 20 < sum(map(len, ends.values())) <= 8 << 20
    assert (tmp_path / "out.zip").stat().st_size < 1 << 20


def test_where_it_goes(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads, desk = tmp_path / "Downloads", tmp_path / "Desktop"
    monkeypatch.setattr(platformdirs, "user_downloads_path", lambda: downloads)
    monkeypatch.setattr(platformdirs, "user_desktop_path", lambda: desk)
    assert save(settings, None, None, None, look).parent == tmp_path / "state"
    desk.mkdir()
    assert save(settings, None, None, None, look).parent == desk
    downloads.mkdir()
    made = save(settings, None, None, None, look)
    assert made.parent == downloads
    assert made.name.startswith("appliance-diagnosis-")
    assert [file.name for file in downloads.iterdir()] == [made.name]
    assert save(settings, None, downloads, None, look).parent == downloads


def test_a_place_that_cannot_be_written_is_an_error(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        save(settings, None, tmp_path / "no" / "such" / "folder.zip", None, look)
    assert not (tmp_path / "no").exists()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ends: list[int] = []

    def end(code: int) -> None:
        ends.append(code)
        raise SystemExit(code)

    monkeypatch.setattr("appliance.cli._end", end)
    monkeypatch.setattr("appliance.diagnose.save.__defaults__", (None, None, look))
    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["appliance", "--port", "1", "diagnose", "--out", str(tmp_path / "a.zip")])
    with pytest.raises(SystemExit):
        main()
    assert ends == [0]
    assert f"saved: {tmp_path / 'a.zip'}" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["appliance", "--port", "1", "diagnose", "--out", str(tmp_path / "b" / "a.zip")])
    with pytest.raises(SystemExit):
        main()
    assert ends == [0, 1]
    assert "cannot be saved: No such file or directory" in capsys.readouterr().out
