"""What a person is told without asking, with a clock in hand."""

from typing import Any

from appliance.tray.notices import Notices
from appliance.tray.state import ModelState, TrayState


def state(**more: Any) -> TrayState:
    return TrayState(**({"state": "ready", "address": "", "device": "cpu AMD EPYC"} | more))


def models(*failed: str, loading: tuple[str, ...] = ()) -> tuple[ModelState, ...]:
    return tuple(ModelState(name=name, condition="failed", error=f"no {name}") for name in failed) + tuple(
        ModelState(name=name, condition="loading") for name in loading
    )


def test_nothing_is_told_while_all_is_well() -> None:
    notices = Notices()
    assert notices.due(state(state="starting"), 0) == ()
    assert notices.due(state(), 1) == ()
    assert notices.due(state(state="paused"), 2) == ()


def test_each_cause_has_its_sentence() -> None:
    assert Notices().due(state(device_reason="no driver"), 0) == ("Running on cpu AMD EPYC: no driver",)
    assert Notices().due(state(models=models("yolo")), 0) == ("Model yolo failed: no yolo",)
    assert Notices().due(state(models=models("a", "b")), 0) == ("2 models failed: a, b",)
    assert Notices().due(state(models=models("e", "d", "c", "b", "a")), 0) == ("5 models failed: a, b, c and 2 more",)
    assert Notices().due(state(restart_needed=("port", "host")), 0) == (
        "Changed, and counts after a restart: host, port",
    )
    ended = state(engine_restarts=1, engine_last_end="access violation")
    assert Notices().due(ended, 0) == ("The engine was restarted: access violation",)
    back_soon = state(engine_restarts=1, engine_running=False)
    assert Notices().due(back_soon, 0) == ("The engine is being restarted",)


def test_the_same_thing_is_told_once() -> None:
    notices, wrong = Notices(), state(device_reason="no driver", models=models("yolo"), engine_restarts=2)
    assert len(notices.due(wrong, 0)) == 3
    assert [notices.due(wrong, at) for at in (1, 59, 60, 61, 3600)] == [()] * 5


def test_an_engine_that_dies_again_and_again_is_told_once_a_minute() -> None:
    notices = Notices()
    told = [at for at in range(0, 300, 5) if notices.due(state(engine_restarts=1 + at // 5), at)]
    assert told == [0, 60, 120, 180, 240]


def test_what_was_held_back_is_told_later_and_together() -> None:
    notices = Notices()
    assert notices.due(state(models=models("a")), 100) == ("Model a failed: no a",)
    assert notices.due(state(models=models("a", "b")), 110) == ()
    assert notices.due(state(models=models("a", "b", "c")), 150) == ()
    assert notices.due(state(models=models("a", "b", "c")), 160) == ("2 models failed: b, c",)


def test_what_was_held_back_and_is_over_is_not_told() -> None:
    notices = Notices()
    assert notices.due(state(models=models("a")), 0)
    assert notices.due(state(models=models("a", "b")), 10) == ()
    assert notices.due(state(models=models("a")), 70) == ()


def test_causes_do_not_hold_each_other_back() -> None:
    notices = Notices()
    assert notices.due(state(engine_restarts=1), 0)
    assert notices.due(state(engine_restarts=1, models=models("a")), 1)
    assert notices.due(state(engine_restarts=1, models=models("a"), device_reason="x"), 2)


def test_what_comes_again_after_it_was_over_is_told_again() -> None:
    notices = Notices()
    assert notices.due(state(device_reason="no driver"), 0)
    assert notices.due(state(), 70) == ()
    assert notices.due(state(device_reason="no driver"), 80)


def test_models_and_device_wait_until_all_are_settled() -> None:
    notices = Notices()
    wrong = {"device_reason": "no driver", "models": models("a", loading=("b",))}
    assert notices.due(state(state="starting", **wrong), 0) == ()
    assert notices.due(state(state="degraded", **wrong), 1) == ()
    settled = state(state="degraded", device_reason="no driver", models=models("a", "b"))
    assert notices.due(settled, 2) == ("Running on cpu AMD EPYC: no driver", "2 models failed: a, b")


def test_a_new_engine_is_no_reason_to_tell_the_same_again() -> None:
    notices = Notices()
    assert notices.due(state(device_reason="no driver"), 0)
    gone = state(engine_restarts=1, engine_running=False, models=models(loading=("a",)))
    assert len(notices.due(gone, 100)) == 1
    assert notices.due(state(engine_restarts=1, models=models(loading=("a",))), 101) == ()
    assert notices.due(state(engine_restarts=1, device_reason="no driver"), 102) == ()
