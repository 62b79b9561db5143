"""The pure parts of the supervisor; the rest has a real process in ``tests/process``."""

import asyncio
import sys
from pathlib import Path

from appliance.engine.pulse import Pulse
from appliance.engine.supervisor import Supervisor, _reason, count_death, restart_delay


def test_restarts_come_later_and_later_up_to_half_a_minute() -> None:
    assert [restart_delay(n) for n in range(10)] == [0, 0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert restart_delay(10**9) == 30


def test_an_engine_that_served_meanwhile_comes_back_at_once() -> None:
    assert count_death(0, 0) == 1
    assert count_death(1, 1.9) == 2
    assert count_death(1, 2.0) == 1
    assert count_death(7, 4.5) == 6
    assert count_death(7, 3600) == 1
    deaths = 0
    for _ in range(100):  # killed every 5 s
        deaths = count_death(deaths, 4.2)
    assert restart_delay(deaths) == 0
    for _ in range(100):  # dies as soon as it is up
        deaths = count_death(deaths, 0.5)
    assert restart_delay(deaths) == 30


def test_how_a_process_ended_is_told_in_the_terms_of_its_system() -> None:
    assert _reason("closed", 0) == _reason("closed", None) == "closed"
    assert _reason("closed", 3) == "closed (exit code 3)"
    assert _reason("closed", -9) == "closed (ended by signal 9)"
    assert _reason("closed", 3221225477) == "closed (exit code 0xC0000005, access violation)"
    assert _reason("closed", 3221226525) == "closed (exit code 0xC000041D)"


def test_a_missed_heartbeat_is_a_hang() -> None:
    pulse = Pulse(10, 300)
    assert pulse.fault(9.9, 0, False, 1.0) is None
    assert pulse.fault(10, 0, False, 2.0) == "no heartbeat for 10 s"


def test_while_a_model_is_loaded_one_that_does_something_lives() -> None:
    pulse = Pulse(10, 300)
    for second in range(300):
        assert pulse.fault(second, 0, True, float(second)) is None
    assert pulse.fault(300, 0, True, 300.0) == "no heartbeat for 300 s while a model was loaded"


def test_while_a_model_is_loaded_one_that_does_nothing_is_hung() -> None:
    pulse = Pulse(10, 300)
    assert pulse.fault(5, 0, True, 1.0) is None
    assert pulse.fault(14, 0, True, 1.0) is None
    assert pulse.fault(15, 0, True, 1.0) == "no heartbeat for 10 s, and nothing is done while a model is loaded"


def test_where_the_processor_s_time_is_not_known_a_load_has_its_time() -> None:
    pulse = Pulse(10, 300)
    assert [pulse.fault(second, 0, True, None) for second in range(0, 300, 2)] == [None] * 150
    assert pulse.fault(301, 0, True, None) is not None


def test_the_next_look_is_not_past_the_deadline() -> None:
    pulse = Pulse(10, 300)
    assert pulse.wait_s(0, 0, 2) == 2
    assert pulse.wait_s(9, 0, 2) == 1
    assert pulse.wait_s(50, 0, 2) == 0.1


def test_an_engine_that_does_not_start_is_counted_as_that(tmp_path: Path) -> None:
    async def main() -> None:
        supervisor = Supervisor(
            [sys.executable, "-c", ""], tmp_path / "log", lambda client: None, lambda reason: None
        )
        assert supervisor.causes == {"crash": 0, "hang": 0, "unfit": 0, "start": 0, "asked": 0}
        running = asyncio.ensure_future(supervisor.run())
        async with asyncio.timeout(30):
            while supervisor.restarts < 2:
                await asyncio.sleep(0.01)
        assert supervisor.causes == {"crash": 0, "hang": 0, "unfit": 0, "start": 2, "asked": 0}
        await supervisor.stop()
        await running

    asyncio.run(main())
