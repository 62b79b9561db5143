"""Who is a client, what is counted, and that nothing is done where no rate is set."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from appliance.api.rates import AWAY, Rates, client_of
from appliance.errors import RateLimited
from appliance.settings import Settings

LOCAL = {"client": ("127.0.0.1", 5)}


def make(notes: list[str] | None = None, own: str | None = None, **settings: Any) -> Rates:
    """With one model, ``m``, whose own rate is ``own``."""
    config = SimpleNamespace(limits=SimpleNamespace(rate=own))
    models: Any = {"m": SimpleNamespace(folder=SimpleNamespace(config=config))}
    return Rates(Settings.model_construct(**settings), models, notes if notes is not None else [])


async def times(rates: Rates, count: int, model: str = "m") -> int:
    """How many of so many requests are taken."""
    taken = 0
    for _ in range(count):
        try:
            await rates.take(model, LOCAL, {})
            taken += 1
        except RateLimited:
            pass
    return taken


def test_who_is_a_client() -> None:
    assert client_of(LOCAL, {b"x-api-key": b"k"}, keyed=False) == "127.0.0.1"
    assert client_of({"client": None}, {}, keyed=False) == ""
    bearer = client_of(LOCAL, {b"authorization": b"Bearer secret"}, keyed=True)
    assert bearer == client_of({"client": ("10.0.0.1", 1)}, {b"x-api-key": b"secret"}, keyed=True)
    assert bearer != client_of(LOCAL, {b"x-api-key": b"other"}, keyed=True) and "secret" not in bearer


def test_what_is_counted() -> None:
    assert not make().limits("m") and not make().limits("nosuch")
    assert make(own="1/hour").limits("m") and not make(own="1/hour").limits("nosuch")
    assert make(rate_limit_model="1/hour").limits("m") and not make(rate_limit_model="1/hour").limits("nosuch")
    assert make(rate_limit_client="1/hour").limits("nosuch")


def test_the_models_own_rate_goes_before_the_servers() -> None:
    assert asyncio.run(times(make(own="2/hour", rate_limit_model="4/hour"), 9)) == 2
    assert asyncio.run(times(make(rate_limit_model="4/hour"), 9)) == 4
    assert asyncio.run(times(make(rate_limit_client="3/hour", rate_limit_model="4/hour"), 9)) == 3


def test_all_at_once_are_not_more_than_the_rate() -> None:
    async def run() -> int:
        rates = make(own="7/hour")
        found = await asyncio.gather(*(times(rates, 1) for _ in range(50)))
        return sum(found)

    assert asyncio.run(run()) == 7


def test_a_storage_that_is_away_limits_nobody_and_is_noted_once() -> None:
    async def run() -> None:
        notes = ["another"]
        rates = make(notes, rate_limit_client="1/hour", rate_limit_storage="redis://127.0.0.1:1")
        assert await times(rates, 20) == 20
        assert notes == ["another", AWAY]
        await rates.close()

    asyncio.run(run())


def test_without_rates_the_library_is_not_imported() -> None:
    script = (
        "import sys, appliance.app\n"
        "from appliance.api.rates import Rates\n"
        "from appliance.settings import Settings\n"
        "Rates(Settings.model_construct(), {}, []).limits('m')\n"
        "assert not {'limits', 'redis'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
