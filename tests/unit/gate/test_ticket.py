"""How a ticket's end reaches whoever waits for it, and what it holds on to afterwards."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from appliance.errors import ApplianceError, ModelError
from appliance.gate.ticket import Outputs, Ticket
from tests.support.fake_runner import rows, ticket
from tests.unit.gate.test_gate import timed


class Body(bytearray):
    """Bytes that can be watched."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is let go has to go by itself: under load the collector comes seldom."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@timed
async def waited_for(asked: Ticket, end_first: bool, held: "list[weakref.ref[Body]]") -> None:
    async def caller() -> None:
        body = Body(b"the request")
        held.append(weakref.ref(body))
        await asked.take()

    if end_first:
        asked.resolve(ModelError("broken"), 1.0)
    task = asyncio.ensure_future(caller())
    await asyncio.sleep(0)
    if not end_first:
        asked.resolve(ModelError("broken"), 1.0)
    with pytest.raises(ModelError):
        await task
    del task  # the test's own hold on the error


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end_first", [False, True])
def test_an_error_holds_no_body_of_the_caller_that_it_was_raised_to(end_first: bool) -> None:
    held: list[weakref.ref[Body]] = []
    waited_for(ticket(), end_first, held)
    assert held[0]() is None


@timed
async def test_a_waiter_is_called_once_and_not_from_within() -> None:
    seen: list[Outputs | ApplianceError] = []
    before, after = ticket(), ticket()
    loop = asyncio.get_running_loop()
    before.hand_to(seen.append, loop)
    assert before.resolve(rows(1), 1.0)
    assert not before.resolve(ModelError("late"), 2.0)
    assert after.resolve(rows(2), 1.0)
    after.hand_to(seen.append, loop)
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [rows(1), rows(2)]
    await asyncio.sleep(0)
    assert len(seen) == 2


@timed
async def test_a_waiter_that_left_is_not_told_and_nothing_is_kept_for_it() -> None:
    asked = ticket()
    task = asyncio.ensure_future(asked.take())
    await asyncio.sleep(0)
    task.cancel()
    asked.resolve(rows(1), 1.0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asked._outcome is None
