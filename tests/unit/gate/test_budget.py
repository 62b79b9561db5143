"""The ledger's arithmetic, by hand and under random histories."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.gate.budget import Ledger, Memory, Share

MIB = 1 << 20


def ledger(total: int = 1000, free: int = 1000, ours: int = 0, fraction: float = 0.9, reserve: int = 100) -> Ledger:
    made = Ledger(Share(fraction, reserve))
    made.read(Memory(total, free, ours))
    return made


@pytest.mark.parametrize(
    ("free", "ours", "capacity", "others"),
    [
        (1000, 0, 800, 0),  # all of it: 1000 × 0.9 − 100
        (700, 300, 800, 0),  # what is ours is ours to use
        (700, 100, 700, 200),  # another program has 200: 700 + 100 − 100
        (50, 20, 0, 930),  # less is left than the reserve
    ],
)
def test_capacity(free: int, ours: int, capacity: int, others: int) -> None:
    book = ledger(free=free, ours=ours)
    assert (book.capacity, book.others, book.ceiling) == (capacity, others, 800)


def test_a_device_that_does_not_tell_limits_nothing() -> None:
    book = Ledger(Share(0.9, 100))
    assert not book.known and (book.capacity, book.ceiling, book.others, book.alone) == (0, 0, 0, 0)
    assert book.fits("a", 10**15) and not book.never_fits(10**15)
    book.start("a", 5)
    assert book.in_flight == 5 and book.fits("b", 10**15)


def test_runs_start_until_the_room_is_used_up() -> None:
    book = ledger()
    book.loaded("m", 200)
    assert book.room == 600
    for n in range(6):
        assert book.fits(n, 100)
        book.start(n, 100)
    assert not book.fits(6, 1)
    book.end(3)
    assert book.fits(6, 100) and not book.fits(6, 101)
    book.end(3)  # a second end changes nothing
    assert book.in_flight == 500
    book.unloaded("m")
    assert book.room == 300 and book.weight_of("m") == 0


def test_what_never_fits() -> None:
    book = ledger()
    book.loaded("m", 300)
    assert book.never_fits(501) and not book.never_fits(500)
    book.read(Memory(1000, 100, 300))
    assert not book.never_fits(500), "other programs may go"


def test_alone_a_run_may_start_that_the_narrowing_or_the_reserve_would_keep_back() -> None:
    book = ledger(free=350, ours=250)  # others have 400
    book.loaded("m", 250)
    assert (book.capacity, book.room, book.alone) == (500, 250, 350)
    assert book.fits("a", 350) and not book.fits("a", 351)
    book.start("b", 10)
    assert not book.fits("a", 350) and book.fits("a", 240)
    book.end("b")
    for now in range(20):
        book.narrow(now * 2.0)
    assert book.room == 62  # a quarter
    assert book.fits("a", 350)


def test_a_guess_does_not_keep_a_run_from_trying_alone() -> None:
    book = ledger()
    assert book.fits("a", 5000, least=10) and not book.fits("a", 5000)
    book.start("b", 1)
    assert not book.fits("a", 5000, least=10)


def test_a_reservation_keeps_room_for_one() -> None:
    book = ledger()
    book.start("small", 300)
    assert not book.fits("large", 600)
    assert book.reserve("large", 600) and book.reserve("large", 600) and not book.reserve("other", 10)
    assert book.reserved == 600
    assert not book.fits("small2", 100), "800 − 300 − 600 < 100"
    book.end("small")
    assert book.fits("small2", 200) and not book.fits("small2", 201)
    assert book.fits("large", 600)
    book.start("large", 600)
    assert book.reserved == 0
    assert book.fits("small2", 200)


def test_a_reservation_given_back() -> None:
    book = ledger()
    assert book.reserve("large", 800)
    assert not book.fits("small", 1)
    assert not book.release("small") and book.release("large") and not book.release("large")
    assert book.fits("small", 800)


def test_what_cannot_start_even_alone_holds_up_nobody() -> None:
    book = ledger()
    book.reserve("large", 700)
    book.read(Memory(1000, 400, 0))  # another program has taken 600
    assert book.fits("small", 300) and book.reserved == 700
    book.read(Memory(1000, 1000, 0))
    assert not book.fits("small", 300)


def test_one_that_goes_first_does_not_wait_for_a_reservation() -> None:
    book = ledger()
    book.reserve("large", 800)
    assert not book.fits("suspect", 10) and book.fits("suspect", 10, first=True)


def test_narrowing_and_widening() -> None:
    book = ledger(reserve=0, fraction=1.0)
    book.loaded("m", 200)
    book.narrow(50.0)
    assert book.narrowing == pytest.approx(0.7) and book.room == 560  # (1000 − 200) × 0.7
    for _ in range(50):
        book.narrow(50.5)
    assert book.narrowing == pytest.approx(0.7), "many at once are one event"
    assert book.out_of_memory == 51
    book.narrow(51.5)
    assert book.narrowing == pytest.approx(0.49)
    assert not book.widen(61.4)
    steps = 0
    for now in range(62, 200):
        steps += book.widen(float(now))
    assert (steps, book.narrowing) == (6, 1.0)  # 0.59, 0.69, 0.79, 0.89, 0.99, 1
    for now in range(300, 400, 2):
        book.narrow(float(now))
    assert book.narrowing == 0.25


def test_after_an_engine_s_death_nothing_is_held_but_the_reservation_of_what_waits() -> None:
    book = ledger()
    book.loaded("m", 200)
    book.start("a", 100)
    book.reserve("b", 300)
    book.cleared()
    assert (book.weights, book.in_flight, book.reserved) == (0, 0, 300)
    book.end("a")
    assert book.in_flight == 0


STEP = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 700), st.integers(0, 700)),
    st.tuples(st.just("start"), st.integers(0, 60), st.integers(0, 60)),
    st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("reserve"), st.integers(0, 700), st.just(0)),
    st.tuples(st.just("release"), st.just(0), st.just(0)),
    st.tuples(st.just("read"), st.integers(0, 1000), st.integers(0, 1000)),
    st.tuples(st.just("weights"), st.integers(0, 3), st.integers(0, 300)),
    st.tuples(st.just("narrow"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("clear"), st.just(0), st.just(0)),
)


@given(st.lists(STEP, max_size=80))
def test_never_over_capacity(steps: list[tuple[str, int, int]]) -> None:
    book, now, serial = ledger(), 0.0, 0
    flying: list[Any] = []
    for kind, a, b in steps:
        now += 1
        match kind:
            case "start":
                serial += 1
                if book.fits(serial, a, min(a, b)):
                    before, others_hold = book.in_flight, book.reserved
                    room = (book.capacity - book.weights) * book.narrowing
                    book.start(serial, a)
                    flying.append(serial)
                    if before:
                        assert before + a <= room
                        kept = others_hold if book.alone >= others_hold else 0
                        assert before + a + kept <= room
                    else:
                        assert a <= room or min(a, b) <= book.alone
                        assert min(a, b) <= max(book.alone, room)
            case "end" if flying:
                book.end(flying.pop(a % len(flying)))
            case "reserve":
                book.reserve("large", a)
            case "release":
                book.release("large")
            case "read":
                book.read(Memory(1000, a, min(b, 1000 - a)))
            case "weights":
                book.loaded(a, b)
            case "narrow":
                book.narrow(now)
                book.widen(now + a * 5)
            case "clear":
                book.cleared()
                flying.clear()
        assert 0.25 <= book.narrowing <= 1.0
        assert 0 <= book.capacity <= book.ceiling
        assert book.in_flight >= 0 and book.alone >= 0
