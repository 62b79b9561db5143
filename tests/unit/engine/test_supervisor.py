"""The pure parts of the supervisor; the rest has a real process in ``tests/process``."""

from appliance.engine.pulse import Pulse
from appliance.engine.supervisor import count_death, restart_delay


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
