"""The menu, the colour, the sign and the tooltip of every state."""

from typing import get_args

import msgspec
import pytest

from appliance.tray.menu import NOTICE_UNITS, TOOLTIP_UNITS, MenuItem, colour, glyph, items, notice, tooltip
from appliance.tray.state import DeviceState, EngineState, ModelState, State, TrayState

STATES = get_args(State)


def make(**values: object) -> TrayState:
    base: dict[str, object] = {
        "state": "ready",
        "address": "http://127.0.0.1:11711",
        "device": "cuda:0 NVIDIA RTX 4060",
    }
    return TrayState(**(base | values))  # type: ignore[arg-type]


def texts(state: TrayState) -> list[str]:
    return [item.text for item in items(state)]


def line(state: TrayState, start: str) -> MenuItem:
    """The one line that starts so."""
    (found,) = [item for item in items(state) if item.text.startswith(start)]
    return found


def inside(item: MenuItem, start: str) -> MenuItem:
    (found,) = [one for one in item.items if one.text.startswith(start)]
    return found


def model(name: str, condition: str = "ready", **more: object) -> ModelState:
    return ModelState(name=name, condition=condition, **more)  # type: ignore[arg-type]


def test_every_state_has_its_own_colour_and_its_own_sign() -> None:
    states = [make(state=name) for name in STATES]
    assert len({colour(state) for state in states}) == len(STATES)
    assert len({glyph(state) for state in states}) == len(STATES)


def test_the_actions_are_there_in_order_and_one_is_the_default() -> None:
    for name in STATES:
        menu = items(make(state=name, starts_at_login=False))
        chosen = [item.action for item in menu if item.action]
        other = "resume" if name == "paused" else "pause"
        opens = ["open_dashboard", "copy_address", "open_models", "open_logs"]
        assert chosen == [*opens, other, "restart_engine", "start_at_login", "save_diagnosis", "quit"]
        assert [item.action for item in menu if item.default] == ["open_dashboard"]
        assert all(item.action is None or not item.items for item in menu)
        grey = {item.action for item in menu if item.action and not item.enabled}
        assert grey == ({"pause", "restart_engine"} if name == "stopped" else set())


def test_a_line_without_an_action_or_others_inside_is_grey() -> None:
    def check(menu: tuple[MenuItem, ...]) -> None:
        for item in menu:
            assert not item.enabled or item.action or item.items
            check(item.items)

    check(items(make(models=(model("a", "failed", error="no"),), memory_parts=(("a", 5),), about=("x",))))


def test_pause_and_resume_take_turns() -> None:
    assert "Pause" in texts(make()) and "Resume" not in texts(make())
    paused = texts(make(state="paused", queued=3))
    assert "Resume" in paused and "Pause" not in paused
    assert paused[0].startswith("Paused") and "Queue: 0 running, 3 waiting" in paused


def test_it_tells_device_memory_and_queue() -> None:
    menu = texts(make(memory_used=3 << 30, memory_total=8 << 30, running=2, queued=5))
    assert menu[0] == "Ready: cuda:0 NVIDIA RTX 4060"
    assert "Memory: 3.0 of 8.0 GiB" in menu
    assert "Queue: 2 running, 5 waiting" in menu


def test_it_tells_how_fast_language_models_answer() -> None:
    assert "Language models: 42 tokens/s" in texts(make(tokens_per_s=41.7))
    assert "Language models: 3.2 tokens/s" in texts(make(tokens_per_s=3.21))
    for quiet in (None, 0.0):
        assert not any("tokens" in text for text in texts(make(tokens_per_s=quiet)))


def test_memory_opens_who_holds_it() -> None:
    parts = (("yolo", 3 << 29), ("tiny", 1000), ("other programs", 300 << 20))
    memory = line(make(memory_used=3 << 30, memory_total=8 << 30, memory_parts=parts), "Memory")
    assert memory.enabled
    assert [one.text for one in memory.items] == ["yolo: 1.5 GiB", "tiny: 1 MiB", "other programs: 300 MiB"]
    assert not line(make(memory_used=1, memory_total=2), "Memory").enabled


def test_each_model_opens_what_can_be_done_with_it() -> None:
    ready = model("yolo", memory=412 << 20, pinned=True, device="cuda:0", running=1, waiting=4)
    state = make(models=(ready, model("a", "unloaded"), model("z", "failed", error="no such file")))
    models = line(state, "Models")
    assert models.text == "Models: 1 of 3 ready"
    assert [one.text for one in models.items] == ["z: failed", "a: not loaded", "yolo: ready, 412 MiB, pinned"]
    yolo = inside(models, "yolo")
    assert [one.text for one in yolo.items][:2] == ["Ready, on cuda:0", "1 running, 4 waiting"]
    assert inside(yolo, "Load again") == MenuItem(text="Load again", action="load_model", model="yolo", enabled=True)
    assert inside(yolo, "Unload").enabled
    pinned = inside(yolo, "Pinned")
    assert (pinned.action, pinned.model, pinned.checked) == ("unpin_model", "yolo", True)
    unloaded = inside(models, "a:")
    assert (inside(unloaded, "Load").enabled, inside(unloaded, "Unload").enabled) == (True, False)
    assert (inside(unloaded, "Pinned").action, inside(unloaded, "Pinned").checked) == ("pin_model", False)
    assert "no such file" in [one.text for one in inside(models, "z:").items]


def test_a_model_that_is_being_loaded_cannot_be_loaded_again() -> None:
    assert not inside(inside(line(make(models=(model("a", "loading"),)), "Models"), "a"), "Load").enabled
    ending = inside(inside(line(make(state="stopped", models=(model("a"),)), "Models"), "a"), "Load again")
    assert not ending.enabled


def test_many_models_are_counted_and_those_that_failed_are_shown() -> None:
    many = (*(model(f"m{n:03}") for n in range(99)), model("zz", "failed", error="no"))
    lines = line(make(models=many), "Models").items
    assert len(lines) == 31
    assert lines[0].text == "zz: failed"
    assert lines[-1] == MenuItem(text="70 more: see the dashboard")


def test_start_at_login_is_ticked_or_left_out() -> None:
    on, off = line(make(starts_at_login=True), "Start at"), line(make(starts_at_login=False), "Start at")
    assert (on.action, on.checked) == ("no_start_at_login", True)
    assert (off.action, off.checked) == ("start_at_login", False)
    assert not [text for text in texts(make()) if text.startswith("Start at")]


def test_quit_says_what_becomes_of_requests() -> None:
    assert texts(make())[-1] == "Quit"
    assert texts(make(running=1))[-1] == "Quit (answers 1 request first)"
    assert texts(make(running=2, queued=5))[-1] == "Quit (answers 7 requests first)"
    assert texts(make(state="stopped", running=2))[-1] == "Quit now (2 requests get no answer)"
    assert texts(make(state="stopped"))[0].startswith("Ending")


def test_an_engine_that_is_not_there_cannot_be_restarted() -> None:
    assert line(make(), "Restart engine").enabled
    assert not line(make(engine_running=False), "Restart engine").enabled


def test_a_diagnostic_file_is_made_once_at_a_time() -> None:
    assert line(make(), "Save a diagnostic file").enabled
    assert not line(make(saving=True), "Saving a diagnostic file").enabled


def test_about_has_the_versions_and_the_documentation() -> None:
    about = line(make(about=("Version 1.2", "ONNX Runtime 1.32.0")), "About")
    assert [one.text for one in about.items if not one.separator] == [
        "Inference Appliance",
        "Version 1.2",
        "ONNX Runtime 1.32.0",
        "API documentation",
    ]
    assert about.items[-1].action == "open_docs"


def test_the_choice_of_the_device_is_told_where_nothing_is_wrong() -> None:
    assert texts(make(device_choice="no GPU was found (device = auto)"))[1] == "no GPU was found (device = auto)"
    both = texts(make(device_choice="asked for", device_reason="no driver"))
    assert both[1] == "no driver"
    assert "asked for" not in both


@pytest.mark.parametrize(
    ("used", "total", "line"),
    [(1 << 30, None, "Memory: 1.0 GiB used"), (None, 8 << 30, "Memory: 8.0 GiB in all"), (None, None, None)],
)
def test_unknown_memory_is_not_made_up(used: int | None, total: int | None, line: str | None) -> None:
    found = [text for text in texts(make(memory_used=used, memory_total=total)) if text.startswith("Memory")]
    assert found == ([line] if line else [])


def test_the_reason_stands_right_below_the_device_in_short_lines() -> None:
    reason = "CUDA was asked for, but libcudnn.so.9 (cuDNN 9) was not found; " * 10
    menu = texts(make(state="degraded", device="CPU", device_reason=reason))
    assert menu[0] == "Degraded: CPU"
    lines = menu[1:5]
    assert " ".join(lines).startswith("CUDA was asked for, but libcudnn.so.9")
    assert all(len(line) <= 70 for line in lines)
    assert lines[-1].endswith("…")
    assert menu[5].startswith("Queue")


def test_failed_models_restarts_and_settings_are_told() -> None:
    assert "Failed: ocr, yolo" in texts(make(models=(model("ocr", "failed"), model("yolo", "failed"), model("ok"))))
    assert "The engine was restarted once" in texts(make(engine_restarts=1))
    thrice = texts(make(engine_restarts=3, engine_last_end="access violation"))
    place = thrice.index("The engine was restarted 3 times")
    assert thrice[place + 1] == "access violation"
    assert "Changed, and counts after a restart: port, host" in texts(make(restart_needed=("port", "host")))


def test_no_line_is_longer_than_a_screen() -> None:
    state = make(device="d" * 500, models=tuple(model(f"{n}" + "m" * 50, "failed") for n in range(50)))
    assert max(map(len, texts(state))) <= 80


def test_the_tooltip_fits_windows_whatever_the_names() -> None:
    for device in ("CPU", "x" * 500, "🙂" * 200):
        text = tooltip(make(device=device))
        assert len(text.encode("utf-16-le")) // 2 <= TOOLTIP_UNITS
    assert tooltip(make()).startswith("Inference Appliance: ready\ncuda:0 NVIDIA RTX 4060\n")


def test_a_notice_fits_windows() -> None:
    assert notice("short") == "short"
    for text in ("x" * 900, "🙂" * 300):
        assert len(notice(text).encode("utf-16-le")) // 2 <= NOTICE_UNITS


def test_the_state_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        make().running = 3  # type: ignore[misc]
    assert msgspec.structs.replace(make(), running=3).running == 3


def cores(number: int, state: str = "ready", **more: object) -> DeviceState:
    """A share of the cores and its engine."""
    parts = (("a", 1 << 30), ("free", 11 << 30))
    engines = (EngineState(id=f"cpu:{number}", state=state, **more),)  # type: ignore[arg-type]
    name = f"cpu:{number}"
    return DeviceState(
        id=name,
        name="EPYC",
        pool="cpu",
        memory_used=5 << 30,
        memory_total=16 << 30,
        memory_parts=parts,
        engines=engines,
    )


def several(*devices: DeviceState, **more: object) -> TrayState:
    engines = tuple(engine for device in devices for engine in device.engines)
    ready = all(engine.state == "ready" for engine in engines)
    base = {"device": "cpu:0, cpu:1", "engine_running": ready, "memory_used": 5 << 30, "memory_total": 16 << 30}
    return make(devices=devices, engines=engines, **(base | more))


def test_a_line_for_each_device_which_opens_its_memory_and_its_engines() -> None:
    state = several(cores(0), cores(1, "restarting", restarts=2, last_end="it was killed"), engine_restarts=2)
    menu = texts(state)
    assert menu[0] == "Ready: cpu:0, cpu:1"
    assert "cpu:0 EPYC: 5.0 of 16.0 GiB" in menu
    assert not [text for text in menu if text.startswith("Memory")]
    second = line(state, "cpu:1 EPYC")
    assert second.text == "cpu:1 EPYC: 5.0 of 16.0 GiB, engine restarting"
    assert [one.text for one in second.items] == [
        "a: 1.0 GiB",
        "free: 11.0 GiB",
        "",
        "cpu:1: engine restarting, restarted 2 times",
        "it was killed",
    ]
    assert "Engines were restarted 2 times" in menu
    assert line(state, "Restart engines").enabled, "one of them runs"
    assert not line(several(cores(0, "starting"), cores(1, "starting")), "Restart engines").enabled


def test_a_device_that_tells_nothing_has_its_name_alone() -> None:
    state = several(DeviceState(id="cuda:0"), DeviceState(id="cuda:1", name="x" * 99, memory_used=1 << 30))
    assert line(state, "cuda:0") == MenuItem(text="cuda:0")
    assert line(state, "cuda:1").text == f"cuda:1 {'x' * 32}…: 1.0 GiB used"


def test_many_devices_are_counted_in_the_menu() -> None:
    state = several(*(cores(number) for number in range(11)))
    assert len([text for text in texts(state) if text.startswith("cpu:")]) == 8
    assert "3 more devices: see the dashboard" in texts(state)


def test_the_tooltip_of_several_devices_says_what_matters_first() -> None:
    assert tooltip(several(cores(0), cores(1), queued=3)).splitlines() == [
        "Inference Appliance: ready",
        "cpu:0, cpu:1",
        "5.0 of 16.0 GiB; 0 running, 3 waiting",
    ]
    assert tooltip(several(cores(0), cores(1, "restarting"))).splitlines()[1] == "cpu:1: engine restarting"
    every = several(*(cores(number, "restarting") for number in range(9)), running=1000, queued=1000)
    text = tooltip(every)
    assert text.splitlines()[1] == "9 of 9 engines do not run"
    assert text.endswith("1000 running, 1000 waiting")
    assert len(text.encode("utf-16-le")) // 2 <= TOOLTIP_UNITS


def test_a_load_that_takes_long_says_what_it_does() -> None:
    state = make(models=(model("yolo", "loading", progress="TensorRT builds an engine"),))
    told = inside(line(state, "Models:"), "yolo")
    assert [one.text for one in told.items][:2] == ["Being loaded", "TensorRT builds an engine"]
