"""``WaitingQueue`` against a model so plain that it is right by sight."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.gate.queue import WaitingQueue
from appliance.gate.ticket import Ticket
from tests.support.fake_runner import ticket as fake_ticket


def ticket(rows: int = 1, key: object = "k", priority: int = 0, deadline: float = 100.0, deaths: int = 0) -> Ticket:
    made = fake_ticket(id="id", rows=rows, key=key, priority=priority, queue_s=deadline)
    made.deaths = deaths
    return made


class Naive:
    """A list in arrival order; who is next is found by looking at all."""

    def __init__(self) -> None:
        self.arrived: list[Ticket] = []

    def order(self) -> list[Ticket]:
        return sorted(self.arrived, key=lambda t: t.priority)  # stable: by arrival within a priority

    def take(self, max_rows: int) -> list[Ticket]:
        head, *behind = self.order()
        run = [head]
        if max_rows > 1 and head.key is not None and not head.deaths:
            for other in behind:
                if other.key == head.key and not other.deaths and sum(t.rows for t in run) + other.rows <= max_rows:
                    run.append(other)
        self.arrived = [t for t in self.arrived if t not in run]
        return run


STEP = st.one_of(
    st.tuples(
        st.just("push"),
        st.integers(1, 6),
        st.sampled_from(["a", "b", None]),
        st.integers(-1, 1),
        st.integers(1, 50),
    ),
    st.tuples(st.just("take"), st.integers(0, 8)),
    st.tuples(st.just("put back")),
    st.tuples(st.just("remove"), st.integers(0, 30)),
    st.tuples(st.just("expire"), st.integers(1, 50)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_it_does_what_the_naive_queue_does(steps: list[Any]) -> None:
    _compare(steps)


def _compare(steps: list[Any]) -> None:
    queue, naive = WaitingQueue(), Naive()
    known: list[Ticket] = []
    out: list[Ticket] = []  # each exactly once, or put back again
    last: list[Ticket] = []
    for step in steps:
        if step[0] == "push":
            made = ticket(step[1], step[2], step[3], float(step[4]))
            known.append(made)
            naive.arrived.append(made)
            assert queue.push(made) == naive.order().index(made) + 1
        elif step[0] == "take" and naive.arrived:
            expected = naive.take(step[1])
            last = queue.take(step[1])
            assert last == expected
            assert len({id(t) for t in last}) == len(last)
            assert len(last) == 1 or sum(t.rows for t in last) <= step[1]
            assert len(last) == 1 or (len({t.key for t in last}) == 1 and last[0].key is not None)
            assert len(last) == 1 or not any(t.deaths for t in last)
            out += last
        elif step[0] == "put back" and last:
            for back in last:
                back.deaths += 1
                out.remove(back)
            naive.arrived = last + naive.arrived
            queue.put_back(last)
            last = []
        elif step[0] == "remove" and known:
            gone = known[step[1] % len(known)]
            here = gone in naive.arrived
            assert queue.remove(gone) is here
            if here:
                naive.arrived.remove(gone)
                out.append(gone)
        elif step[0] == "expire":
            now = float(step[1])
            late = [t for t in naive.order() if t.queue_deadline <= now]
            assert queue.expired(now) == late
            naive.arrived = [t for t in naive.arrived if t not in late]
            out += late
        order = naive.order()
        assert list(queue) == order
        assert len(queue) == len(order)
        assert queue.next_deadline() == min((t.queue_deadline for t in order), default=None)
        assert [queue.place(t) for t in order] == list(range(1, len(order) + 1))
    assert sorted(map(id, [*queue, *out])) == sorted(map(id, known)), "each is here or was taken, once"


def test_lower_numbers_go_first_and_equals_in_order() -> None:
    queue = WaitingQueue()
    low, urgent, later = ticket(priority=5), ticket(priority=-1), ticket(priority=5)
    assert [queue.push(t) for t in (low, urgent, later)] == [1, 1, 3]
    assert [queue.take(1)[0] for _ in range(3)] == [urgent, low, later]
    assert queue.next_deadline() is None


def test_interrupted_ones_go_before_all_of_their_priority_in_their_old_order() -> None:
    queue = WaitingQueue()
    waiting, urgent = ticket(), ticket(priority=-1)
    first, second = ticket(deaths=1), ticket(deaths=1)
    queue.push(waiting)
    queue.push(urgent)
    queue.put_back([first, second])
    assert list(queue) == [urgent, first, second, waiting]


def test_an_interrupted_one_runs_alone_whether_head_or_not() -> None:
    queue = WaitingQueue()
    interrupted, others = ticket(deaths=1), [ticket(), ticket()]
    for other in others:
        queue.push(other)
    queue.put_back([interrupted])
    assert queue.take(8) == [interrupted]
    urgent = ticket(priority=-1)
    queue.put_back([interrupted])
    queue.push(urgent)
    assert queue.take(8) == [urgent, *others]
    assert queue.take(8) == [interrupted]


def test_a_request_larger_than_a_run_goes_alone() -> None:
    queue = WaitingQueue()
    large, small = ticket(rows=9), ticket()
    queue.push(large)
    queue.push(small)
    assert queue.take(4) == [large]
    assert queue.take(4) == [small]


def test_one_that_does_not_fit_any_more_is_overtaken_by_one_that_does() -> None:
    queue = WaitingQueue()
    first, wide, last = ticket(rows=3), ticket(rows=2), ticket(rows=1)
    for t in (first, wide, last):
        queue.push(t)
    assert queue.take(4) == [first, last]
    assert list(queue) == [wide]


def test_place_of_a_stranger_is_nought() -> None:
    assert WaitingQueue().place(ticket()) == 0
