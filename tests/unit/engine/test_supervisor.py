"""The pure part of the supervisor; the rest has a real process in ``tests/process``."""

from appliance.engine.supervisor import restart_delay


def test_restarts_come_later_and_later_up_to_half_a_minute() -> None:
    assert [restart_delay(n) for n in range(10)] == [0, 0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert restart_delay(1000) == 30
