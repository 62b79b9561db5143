"""Events go to whoever listens; a slow listener loses old ones and holds up nobody."""

import asyncio

from appliance.serving.events import Event, Events


def test_every_listener_hears_and_none_after_it_left() -> None:
    async def main() -> None:
        events = Events()
        events.publish("status")  # nobody listens: nothing is kept
        one, two = events.subscribe(), events.subscribe()
        events.publish("model", name="m")
        events.unsubscribe(two)
        events.unsubscribe(two)
        events.publish("engine", state="down")
        assert [one.get_nowait(), one.get_nowait()] == [
            Event("model", {"name": "m"}),
            Event("engine", {"state": "down"}),
        ]
        assert two.get_nowait().data == {"name": "m"}
        assert one.empty() and two.empty()

    asyncio.run(main())


def test_who_does_not_keep_up_keeps_the_newest() -> None:
    async def main() -> None:
        events = Events(room=3)
        queue = events.subscribe()
        for n in range(10):
            events.publish("status", n=n)
        assert [queue.get_nowait().data["n"] for _ in range(3)] == [7, 8, 9]

    asyncio.run(main())


def test_closing_ends_all_also_those_that_come_later_and_those_that_are_full() -> None:
    async def main() -> None:
        events = Events(room=1)
        full = events.subscribe()
        events.publish("status")
        events.close()
        assert full.get_nowait() is None
        assert events.subscribe().get_nowait() is None

    asyncio.run(main())
