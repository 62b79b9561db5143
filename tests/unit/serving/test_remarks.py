"""Remarks that come and go."""

import asyncio

from appliance.serving.remarks import Remarks, keep


def test_they_come_and_go_among_others() -> None:
    notes = ["another's"]
    remarks = Remarks(notes)
    remarks.are(["full"])
    remarks.are(["short", "full"])
    assert notes == ["another's", "full", "short"]
    notes.append("later")
    remarks.are(["short"])
    assert notes == ["another's", "short", "later"]
    remarks.are([])
    assert notes == ["another's", "later"]


def test_a_look_that_fails_does_not_end_the_watch() -> None:
    notes: list[str] = []
    looks = iter([RuntimeError("what now"), ["full"]])

    def look() -> list[str]:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    async def main(monkey_s: float) -> None:
        from appliance.serving import remarks

        before, remarks._EVERY_S = remarks._EVERY_S, monkey_s
        try:
            watching = asyncio.create_task(keep(notes, look))
            async with asyncio.timeout(20):
                while not notes:
                    await asyncio.sleep(0.01)
            watching.cancel()
        finally:
            remarks._EVERY_S = before

    asyncio.run(main(0.05))
    assert notes == ["full"]
