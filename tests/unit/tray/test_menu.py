"""The menu, the colour, the sign and the tooltip of every state."""

from typing import get_args

import msgspec
import pytest

from appliance.tray.menu import TOOLTIP_UNITS, State, TrayState, colour, glyph, items, tooltip

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


def test_every_state_has_its_own_colour_and_its_own_sign() -> None:
    states = [make(state=name) for name in STATES]
    assert len({colour(state) for state in states}) == len(STATES)
    assert len({glyph(state) for state in states}) == len(STATES)


def test_the_actions_are_there_in_order_and_one_is_the_default() -> None:
    for name in STATES:
        menu = items(make(state=name))
        chosen = [item.action for item in menu if item.action]
        other = "resume" if name == "paused" else "pause"
        assert chosen == ["open_dashboard", "copy_address", "open_models", "open_logs", other, "quit"]
        assert [item.action for item in menu if item.default] == ["open_dashboard"]
        assert all(item.enabled == (item.action is not None) for item in menu)


def test_pause_and_resume_take_turns() -> None:
    assert "Pause" in texts(make()) and "Resume" not in texts(make())
    paused = texts(make(state="paused", queued=3))
    assert "Resume" in paused and "Pause" not in paused
    assert paused[0].startswith("Paused") and "Queue: 0 running, 3 waiting" in paused


def test_it_tells_device_memory_and_queue() -> None:
    menu = texts(make(memory_used=3 << 30, memory_total=8 << 30, running=2, queued=5, models_ready=2, models_total=3))
    assert menu[0] == "Ready: cuda:0 NVIDIA RTX 4060"
    assert "Memory: 3.0 of 8.0 GiB" in menu
    assert "Queue: 2 running, 5 waiting" in menu
    assert "Models: 2 of 3 ready" in menu


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


def test_failed_models_and_restarts_are_told() -> None:
    assert "Failed: yolo, ocr" in texts(make(models_failed=("yolo", "ocr")))
    assert "The engine was restarted once" in texts(make(engine_restarts=1))
    assert "The engine was restarted 3 times" in texts(make(engine_restarts=3))


def test_no_line_is_longer_than_a_screen() -> None:
    state = make(device="d" * 500, models_failed=tuple("m" * 50 for _ in range(50)))
    assert max(map(len, texts(state))) <= 80


def test_the_tooltip_fits_windows_whatever_the_names() -> None:
    for device in ("CPU", "x" * 500, "🙂" * 200):
        text = tooltip(make(device=device))
        assert len(text.encode("utf-16-le")) // 2 <= TOOLTIP_UNITS
    assert tooltip(make()).startswith("Inference Appliance: ready\ncuda:0 NVIDIA RTX 4060\n")


def test_the_state_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        make().running = 3  # type: ignore[misc]
    assert msgspec.structs.replace(make(), running=3).running == 3
