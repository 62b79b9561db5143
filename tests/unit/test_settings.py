"""Where a setting comes from, and the words when it is wrong."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import limits
import pytest

from appliance import settings as module
from appliance.settings import Settings, SettingsError, load


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
        ({"prot": 1}, r"^settings: prot: Extra inputs are not permitted$"),
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
    with pytest.raises(SettingsError, match=r"^settings: .*line 1"):
        load()


def test_an_unknown_key_in_a_file(files: tuple[Path, Path]) -> None:
    files[1].write_text("prot = 1\n")
    with pytest.raises(SettingsError, match="prot: Extra inputs"):
        load()


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
