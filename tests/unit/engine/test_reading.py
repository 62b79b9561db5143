"""The reading thread and its relief."""

import socket
import threading
from collections.abc import Callable

from appliance.engine.channel import FrameReader, decode_for_engine, frame
from appliance.engine.messages import Ping, Stop
from appliance.engine.reading import ReadingLoop

Told = Callable[[], None] | bool


class Reading:
    """A loop in a thread, and the other end of its socket. ``act`` is told the number of each ping."""

    def __init__(self, act: Callable[[int], Told]) -> None:
        self.host, self.engine = socket.socketpair()
        self.heard: list[tuple[int, str]] = []
        self.news = threading.Condition()

        def acted(header: bytes, _: memoryview) -> Told:
            message = decode_for_engine(header)
            if isinstance(message, Stop):
                return False
            assert isinstance(message, Ping)
            with self.news:
                self.heard.append((message.n, threading.current_thread().name))
                self.news.notify_all()
            return act(message.n)

        self.thread = threading.Thread(target=ReadingLoop(FrameReader(self.engine), acted, 0.05).serve, name="first")
        self.thread.start()

    def ping(self, n: int) -> None:
        self.host.sendall(b"".join(frame(Ping(n))))

    def stop(self) -> None:
        self.host.sendall(b"".join(frame(Stop())))
        self.ended()

    def ended(self) -> None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.host.close()
        self.engine.close()

    def wait(self, count: int) -> list[int]:
        with self.news:
            assert self.news.wait_for(lambda: len(self.heard) >= count, 20), self.heard
            return [n for n, _ in self.heard]


def test_until_it_is_told_to_stop() -> None:
    reading = Reading(lambda n: True)
    reading.ping(1)
    reading.ping(2)
    assert reading.wait(2) == [1, 2]
    reading.stop()


def test_until_the_stream_ends() -> None:
    reading = Reading(lambda n: True)
    reading.host.close()
    reading.ended()


def test_short_work_is_done_by_the_thread_that_read_it() -> None:
    done: list[str] = []
    reading = Reading(lambda n: lambda: done.append(threading.current_thread().name))
    for n in range(5):
        reading.ping(n)
    assert reading.wait(5) == [0, 1, 2, 3, 4]
    reading.stop()
    assert done == ["first"] * 5


def test_long_work_does_not_keep_anybody_from_being_heard() -> None:
    gates = {n: threading.Event() for n in (1, 2)}

    def act(n: int) -> Told:
        gate = gates.get(n)
        return True if gate is None else lambda: assert_set(gate)

    def assert_set(gate: threading.Event) -> None:
        assert gate.wait(20)

    reading = Reading(act)
    for n in (0, 1, 2, 3):  # both 1 and 2 take long
        reading.ping(n)
    assert reading.wait(4) == [0, 1, 2, 3]
    names = [name for _, name in reading.heard]
    assert names[0] == names[1] == "first"
    assert names[2] == "reader"
    gates[1].set()  # relieved, it reads no more
    reading.ping(4)
    assert reading.wait(5)[-1] == 4
    assert reading.heard[-1][1] == "reader"
    gates[2].set()
    reading.stop()
