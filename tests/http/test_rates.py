"""Rate limits over HTTP: per client, per model, in memory and in a Redis that two appliances share."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.conftest import fake
from tests.http.helpers import connect, ended, entry, head, infer, read_answer, refused
from tests.support.redis import Redis
from tests.support.server import Server

Start = Callable[..., Server]
AWAY = "the storage of the rate limits does not answer: requests are not limited"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path) as running:
        yield running


def double(server: Server) -> None:
    fake(server, "double")


def ask(server: Server, model: str = "double", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return infer(server, model, entry([1, 2], [1, 2]), headers=named)


def codes(server: Server, count: int, model: str = "double", **headers: str) -> list[int]:
    return [ask(server, model, **headers).status_code for _ in range(count)]


def over(answer: httpx.Response, *words: str, most_s: int = 60) -> None:
    """It is a 429 ``rate_limited`` that says when to come again."""
    refused(answer, 429, "rate_limited", *words)
    assert 1 <= int(answer.headers["retry-after"]) <= most_s


def test_a_client_over_its_rate(start: Start) -> None:
    server = start(double, rate_limit_client="5/hour")
    assert codes(server, 5) == [200] * 5
    over(ask(server), "this client", "5/hour", most_s=3600)
    over(server.client.post("/predict/double", json={"inputs": {"x": [[1]]}}), "this client", most_s=3600)
    over(ask(server, "nosuch"), most_s=3600)
    over(ask(server, X_API_Key="a-made-up-one"), most_s=3600)  # nobody checks it, so it makes no new client
    assert all(server.client.get(path).status_code == 200 for path in ("/health", "/api/status", "/metrics", "/v2"))
    assert 'appliance_refused_total{code="rate_limited"} 4.0' in server.client.get("/metrics").text


def test_the_window_slides(start: Start) -> None:
    server = start(double, rate_limit_client="4/2 seconds")
    assert codes(server, 4) == [200] * 4
    answer = ask(server)
    over(answer, most_s=2)
    began, seen = time.monotonic(), 0
    while time.monotonic() < began + 6:
        seen += ask(server).status_code == 200
        time.sleep(0.05)
    assert 7 <= seen <= 13  # 4 in 2 s, over 6 s


def test_waiting_as_told_lets_the_next_one_in(start: Start) -> None:
    server = start(double, rate_limit_client="3/second")
    for _ in range(3):
        while (answer := ask(server)).status_code == 200:
            pass
        time.sleep(int(answer.headers["retry-after"]))
        assert ask(server).status_code == 200


def test_models_have_rates_of_their_own(start: Start) -> None:
    def models(server: Server) -> None:
        fake(server, "plain")
        fake(server, "other")
        fake(server, "rare", config='[limits]\nrate = "2/hour"')

    server = start(models, rate_limit_model="4/hour")
    assert codes(server, 3, "rare") == [200, 200, 429]
    assert codes(server, 5, "plain") == [200] * 4 + [429]
    assert codes(server, 5, "other") == [200] * 4 + [429]
    over(ask(server, "rare"), "model 'rare'", "2/hour", most_s=3600)
    refused(ask(server, "nosuch"), 404, "model_not_found")


def test_a_models_own_rate_without_any_setting(start: Start) -> None:
    def models(server: Server) -> None:
        fake(server, "rare", config='[limits]\nrate = "2/hour"')
        fake(server, "free")

    server = start(models)
    assert codes(server, 50, "free") == [200] * 50
    assert codes(server, 3, "rare") == [200, 200, 429]


def test_a_refused_client_does_not_use_up_the_model(start: Start) -> None:
    server = start(double, rate_limit_client="2/hour", rate_limit_model="3/hour", api_key="one-of-them")
    server.client.headers["X-API-Key"] = "one-of-them"
    assert codes(server, 5) == [200, 200, 429, 429, 429]
    assert server.client.get("/api/status").status_code == 200


def test_a_checked_key_is_the_client_whatever_the_address(start: Start) -> None:
    server = start(double, rate_limit_client="3/hour", api_key="the-one-key")
    assert codes(server, 2, Authorization="Bearer the-one-key", X_Forwarded_For="10.0.0.1") == [200, 200]
    assert codes(server, 2, X_API_Key="the-one-key", X_Forwarded_For="10.0.0.2") == [200, 429]
    refused(ask(server, X_API_Key="another-key"), 401, "unauthorized")


def test_behind_a_proxy_of_this_machine_the_address_is_the_callers(start: Start) -> None:
    server = start(double, rate_limit_client="2/hour")
    assert codes(server, 3, X_Forwarded_For="10.0.0.1") == [200, 200, 429]
    assert codes(server, 3, X_Forwarded_For="10.0.0.2") == [200, 200, 429]


def test_a_replay_does_not_count(start: Start) -> None:
    server = start(double, rate_limit_client="2/hour")
    first = ask(server, Idempotency_Key="k")
    assert first.status_code == 200
    for _ in range(5):
        again = ask(server, Idempotency_Key="k")
        assert again.json() == first.json() and again.headers["idempotent-replayed"] == "true"
    assert ask(server, Idempotency_Key="l").status_code == 200
    over(ask(server, Idempotency_Key="m"), most_s=3600)
    assert ask(server, Idempotency_Key="k").status_code == 200


def test_it_is_refused_before_its_body_is_read(start: Start) -> None:
    server = start(double, rate_limit_client="1/hour")
    assert codes(server, 1) == [200]
    url = "/v2/models/double/infer"
    with connect(server, 10) as sock:
        sock.sendall(head(server, "POST", url, {"Content-Length": "40000000"}))
        status, headers, _ = read_answer(sock)
        assert (status, headers["connection"]) == (429, "close")
        assert ended(sock)
    with connect(server, 10) as sock:  # a small one does not cost the connection
        for _ in range(2):
            sock.sendall(head(server, "POST", url, {"Content-Length": "4"}) + b"{}\r\n")
            status, headers, _ = read_answer(sock)
            assert status == 429 and "connection" not in headers


def test_two_appliances_share_one_limit(start: Start, redis: Redis) -> None:
    settings = {"rate_limit_client": "6/hour", "rate_limit_storage": redis.url, "api_key": "a-secret-key"}
    one, two = start(double, **settings), start(double, **settings)
    found = []
    for _ in range(5):
        for server in (one, two):
            found.append(ask(server, X_API_Key="a-secret-key").status_code)
    assert found == [200] * 6 + [429] * 4
    over(ask(one, X_API_Key="a-secret-key"), "this client", most_s=7200)
    keys = redis.keys()
    assert b"APPLIANCE:" in keys and b"secret" not in keys


def test_redis_is_killed_in_the_middle(start: Start, redis: Redis) -> None:
    server = start(double, rate_limit_client="3/hour", rate_limit_storage=redis.url)
    assert codes(server, 4) == [200, 200, 200, 429]
    redis.kill()
    began = time.monotonic()
    assert codes(server, 20) == [200] * 20
    assert time.monotonic() - began < 2
    assert server.status()["notes"] == [AWAY]
    time.sleep(2.5)  # some attempts more
    assert server.log.read_text().count(AWAY) == 1
    redis.start()
    server.wait_for(lambda: server.status()["notes"] == [], 10, "the note to go")
    assert codes(server, 4) == [200, 200, 200, 429]
    assert "answers again" in server.log.read_text()
    log = server.log.read_text()
    assert "Traceback" not in log and "never" not in log, log


def test_a_redis_that_hangs_holds_up_nobody_for_long(start: Start, redis: Redis) -> None:
    server = start(double, rate_limit_client="1000/hour", rate_limit_storage=redis.url)
    assert codes(server, 2) == [200] * 2
    redis.freeze()
    try:
        took = []
        for _ in range(40):
            began = time.monotonic()
            assert ask(server).status_code == 200
            took.append(time.monotonic() - began)
            time.sleep(0.05)
        assert max(took) < 1.0 and sorted(took)[-2] < 0.2, took
        assert server.status()["notes"] == [AWAY]
    finally:
        redis.thaw()
    server.wait_for(lambda: server.status()["notes"] == [], 10, "the note to go")


def test_it_starts_and_ends_without_its_redis(start: Start, redis: Redis) -> None:
    redis.kill()
    server = start(double, rate_limit_client="1/hour", rate_limit_storage=redis.url)
    assert codes(server, 3) == [200] * 3
    assert server.status()["notes"] == [AWAY]
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 5
    assert "Traceback" not in server.log.read_text()
