"""Where a setting comes from, and the words when it is wrong."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import limits
import pytest

from appliance import settings as module
from appliance.setting_layers import faults_of, unknown_variables
from appliance.settings import Settings, SettingsError, layers, live, load, shown


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The user's file and the machine's; no variable is set."""
    user, machine = tmp_path / "user.toml", tmp_path / "machine.toml"
    monkeypatch.setattr(module.paths, "settings_files", lambda: [user, machine])
    for name in list(os.environ):
        if name.upper().startswith("APPLIANCE_"):
            monkeypatch.delenv(name)
    yield user, machine


def test_built_in_values() -> None:
    found = load()
    assert (found.host, found.port, found.device, found.api_key) == ("127.0.0.1", 11711, "auto", None)
    assert found.models is None and found.state is None


def test_each_source_is_stronger_than_the_one_before(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    user, machine = files
    assert load().port == 11711
    machine.write_text("port = 1001\nthreads = 1\nmax_batch = 2\nqueue_total = 3\n")
    assert load().port == 1001
    user.write_text("port = 1002\nthreads = 11\nmax_batch = 12\n")
    assert load().port == 1002
    monkeypatch.setenv("APPLIANCE_PORT", "1003")
    monkeypatch.setenv("APPLIANCE_THREADS", "111")
    assert load().port == 1003
    found = load(port=1004)
    assert (found.port, found.threads, found.max_batch, found.queue_total) == (1004, 111, 12, 3)


def test_a_flag_that_was_not_given_is_none() -> None:
    assert load(port=None, host=None).port == 11711
    assert load(port=0).port == 0


def test_lists_come_as_json_in_variables_and_as_toml_in_files(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files[0].write_text('allowed_hosts = ["a", "b"]\n')
    monkeypatch.setenv("APPLIANCE_ALLOWED_ORIGINS", '["https://c"]')
    found = load()
    assert (found.allowed_hosts, found.allowed_origins) == (["a", "b"], ["https://c"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": 70000}, r"^settings: port: Input should be less than or equal to 65535$"),
        ({"port": "many"}, r"^settings: port: .*valid integer"),
        ({"device": "gpu"}, r"^settings: device: "),
        ({"device": "cuda:x"}, r"^settings: device: "),
        ({"api_key": "short"}, r"^settings: api_key: .*at least 8"),
        ({"log_level": "loud"}, r"^settings: log_level: .*'debug', 'info', 'warning' or 'error'"),
        ({"prot": 1}, r"^settings: prot: there is no such setting; did you mean port\?$"),
        ({"rate_limit_client": "lots"}, r"^settings: rate_limit_client: 'lots' is not a rate \(such as 100/second"),
        ({"rate_limit_model": "0/second"}, r"^settings: rate_limit_model: "),
        ({"rate_limit_storage": "memcached://h"}, r"^settings: rate_limit_storage: must be memory:// or "),
        ({"rate_limit_storage": "redis://:pa/ss@h"}, r"rate_limit_storage: must be [^@]*$"),
        ({"port": -1, "queue_total": 0}, r"^settings: port: .*; queue_total: "),
    ],
)
def test_a_wrong_value_is_named(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(**flags)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_MAX_BATCH", "0")
    with pytest.raises(SettingsError, match=r"^settings: max_batch: "):
        load()


def test_a_variable_that_is_not_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_ALLOWED_HOSTS", "a,b")
    with pytest.raises(SettingsError, match="allowed_hosts"):
        load()


def test_a_file_that_is_not_toml(files: tuple[Path, Path]) -> None:
    files[0].write_text("port = = 1\n")
    with pytest.raises(SettingsError, match=r"^settings: .*user\.toml: .*line 1"):
        load()


def test_an_unknown_key_in_a_file_is_told_with_its_line_and_what_was_meant(files: tuple[Path, Path]) -> None:
    user, machine = files
    machine.write_text("# one\nthreads = 1\nprot = 1\n[elsewhere]\nx = 1\n")
    user.write_text("port = 1\n\nallowed-host = []\n")
    with pytest.raises(SettingsError) as caught:
        load()
    assert str(caught.value) == (
        f"settings: {machine}, line 3: prot: there is no such setting; did you mean port?; "
        f"{machine}, line 4: elsewhere: there is no such setting; "
        f"{user}, line 3: allowed-host: there is no such setting; did you mean allowed_hosts?"
    )
    told = [fault.public for fault in caught.value.faults]
    assert told[0] == "the system's settings.toml, line 3: prot: there is no such setting; did you mean port?"
    assert not any(str(user.parent) in words for words in told)


def test_a_wrong_value_in_a_file_is_told_with_its_line(files: tuple[Path, Path]) -> None:
    files[0].write_text('port = 1\nallowed_hosts = [\n  "a",\n  5,\n]\nthreads = -1\n')
    with pytest.raises(SettingsError) as caught:
        load()
    first, second = caught.value.faults
    assert (first.key, first.line, first.words) == ("allowed_hosts", 2, "entry 1: Input should be a valid string")
    assert (second.key, second.line, second.file) == ("threads", 6, files[0])


def test_a_wrong_value_that_a_stronger_source_hides_is_no_hindrance(files: tuple[Path, Path]) -> None:
    files[1].write_text('port = "x"\n')
    assert load(port=5).port == 5
    assert [str(f) for layer in layers() for f in faults_of(Settings, [layer], layer.values)] == [
        f"{files[1]}, line 1: port: Input should be a valid integer, unable to parse string as an integer"
    ]


def test_files_that_cannot_be_read(files: tuple[Path, Path]) -> None:
    user, machine = files
    user.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"user\.toml: is not text in UTF-8$"):
        load()
    user.unlink()
    user.mkdir()
    with pytest.raises(SettingsError, match=r"user\.toml: Is a directory$"):
        load()
    user.rmdir()
    machine.write_text("\ufeffport = 7\n", "utf-8")  # as some editors write it
    assert load().port == 7


def test_variables_that_are_no_settings() -> None:
    names = ["APPLIANCE_PROT", "appliance_port", "APPLIANCE_OF_ANOTHER_KIND", "APPLIANCE_CHILD_SOCKET", "PATH"]
    assert unknown_variables(Settings, names) == [
        "APPLIANCE_OF_ANOTHER_KIND is ignored: there is no such setting",
        "APPLIANCE_PROT is ignored: there is no such setting; did you mean APPLIANCE_PORT?",
    ]


def test_the_sources_are_looked_at_again(files: tuple[Path, Path]) -> None:
    files[0].write_text("port = 1\nqueue_total = 1\n")
    settings = load(port=2, host=None)
    files[0].write_text("port = 3\nqueue_total = 4\nthreads = 5\n")
    fresh = settings.reloaded()
    assert (fresh.port, fresh.queue_total, fresh.threads) == (2, 4, 5)
    assert settings.take_up(fresh) == (["queue_total"], ["threads"])
    assert (settings.queue_total, settings.threads) == (4, 0)
    assert settings.take_up(settings.reloaded()) == ([], ["threads"])
    files[0].write_text("")
    assert settings.take_up(settings.reloaded()) == (["queue_total"], [])
    assert settings.queue_total == 1024


def test_which_settings_wait_for_a_restart() -> None:
    assert {name for name in Settings.model_fields if not live(name)} == {
        "host", "port", "models", "embedded_models", "state", "device", "threads", "max_batch", "load_timeout_ms",
        "rate_limit_storage", "max_pixels", "max_connections", "pipeline_threads",
    }  # fmt: skip


def test_secrets_are_not_shown() -> None:
    assert shown("api_key", "secret-one") == shown("rate_limit_storage", "redis://:pw@h") == "(not shown)"
    assert (shown("api_key", None), shown("rate_limit_storage", "memory://")) == (None, "memory://")
    assert (shown("port", 5), shown("models", Path("m"))) == (5, "m")


@pytest.mark.parametrize("rate", ["100/second", "1/day", "5/10 seconds", "20 / minute", "999999999/hour"])
def test_rates(rate: str) -> None:
    assert load(rate_limit_client=rate, rate_limit_model=rate).rate_limit_client == rate
    parsed = limits.parse(rate)  # what is taken here, the library understands
    assert parsed.amount == int(rate.replace("/", " ").split()[0])
    assert parsed.get_expiry() == {"s": 1, "d": 86400, "1": 10, "m": 60, "h": 3600}[rate.split("/")[1].strip()[0]]


@pytest.mark.parametrize("address", ["memory://", "redis://h", "redis://:p%2Fw@h:6380/2", "rediss://u:p@[::1]:1"])
def test_storages_of_rates(address: str) -> None:
    assert load(rate_limit_storage=address).rate_limit_storage == address


def test_a_storage_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"^settings: rate_limit_storage: the extra 'redis' is not installed"):
        load(rate_limit_storage="redis://h")
    assert load().rate_limit_storage == "memory://"


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_devices(device: str) -> None:
    assert load(device=device).device == device


def test_folders_are_absolute_and_know_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = load(models="~/m", state="s")
    assert found.models_folder() == tmp_path / "m"
    assert found.state_folder() == tmp_path / "s"
    assert load().models_folder().is_absolute() and load().state_folder().is_absolute()


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().port = 1  # type: ignore[misc]


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
