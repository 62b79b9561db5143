"""Downloads that stop and go on, from a server of this machine that is made to fail."""

import errno
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.errors import PackError
from appliance.runtimes import fetch
from appliance.runtimes.fetch import Download

CONTENT = bytes(range(256)) * 8192  # 2 MiB


class Shop(ThreadingHTTPServer):
    """``cut`` bytes of each answer are sent, then the connection ends. ``seen``: the Range of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = CONTENT
        self.tag: str | None = '"one"'
        self.cut: list[int] = []
        self.statuses: list[int] = []
        self.ranges = True
        self.seen: list[str | None] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/pack.zip"


class _Handler(BaseHTTPRequestHandler):
    server: Shop

    def do_GET(self) -> None:
        shop = self.server
        asked = self.headers["range"]
        shop.seen.append(asked)
        if shop.statuses and (status := shop.statuses.pop(0)) != 200:
            self.send_response(status)
            self.send_header("content-length", "0")
            if status == 302:
                self.send_header("location", "http://example.invalid/pack.zip")
            self.end_headers()
            return
        same = self.headers["if-range"] == shop.tag and shop.ranges
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and same else 0
        total = len(shop.content)
        if begin >= total:
            self.send_response(416)
            self.send_header("content-range", f"bytes */{total}")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("content-range", f"bytes {begin}-{total - 1}/{total}")
        if shop.tag:
            self.send_header("etag", shop.tag)
        self.send_header("content-length", str(total - begin))
        self.end_headers()
        part = shop.content[begin:]
        cut = shop.cut.pop(0) if shop.cut else len(part)
        self.wfile.write(part[:cut])
        if cut < len(part):
            self.close_connection = True

    def log_message(self, *_words: Any) -> None:
        pass


@pytest.fixture
def shop() -> Iterator[Shop]:
    server = Shop()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(follow_redirects=True, trust_env=False) as made:
        yield made


class Getting:
    def __init__(self, shop: Shop, folder: Path, client: httpx.Client, **more: Any) -> None:
        self.waits: list[float] = []
        self.told: list[tuple[int, int | None]] = []
        settings: dict[str, Any] = {"free": lambda folder: 1 << 40, "sleep": self.waits.append, **more}
        sha256 = settings.pop("sha256", None)
        self.download = Download(shop.address, folder, sha256, client=client, **settings)

    def run(self) -> bytes:
        return self.download.run(lambda there, total: self.told.append((there, total))).read_bytes()


def test_all_at_once(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    getting = Getting(shop, tmp_path / "new", client, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert getting.run() == CONTENT
    assert getting.told[-1] == (2 << 20, 2 << 20)
    assert shop.seen == [None]
    getting.download.forget()
    assert list((tmp_path / "new").iterdir()) == []


def test_an_interrupted_one_goes_on_at_once(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    shop.cut = [1 << 20, 1 << 19]
    getting = Getting(shop, tmp_path, client)
    assert getting.run() == CONTENT
    assert shop.seen == [None, "bytes=1048576-", "bytes=1572864-"]
    assert getting.waits == [1.0, 1.0]


def test_an_interrupted_one_goes_on_the_next_time(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    shop.cut = [1 << 20]

    def stop(there: int, total: int | None) -> None:
        raise KeyboardInterrupt

    getting = Getting(shop, tmp_path, client)
    with pytest.raises(KeyboardInterrupt):
        getting.download.run(stop)
    there = getting.download.file.stat().st_size
    assert 0 < there <= 1 << 20
    assert Getting(shop, tmp_path, client).run() == CONTENT
    assert shop.seen == [None, f"bytes={there}-"]


def test_a_file_that_changed_meanwhile_is_got_anew(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    shop.cut = [1 << 20]
    with pytest.raises(PackError):
        Getting(shop, tmp_path, client, sleep=_fail).run()
    shop.tag, shop.content = '"two"', CONTENT[::-1]
    assert Getting(shop, tmp_path, client).run() == CONTENT[::-1]


def _fail(_seconds: float) -> None:
    raise PackError("given up")


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_a_server_without_a_mark_begins_anew(
    shop: Shop, tmp_path: Path, client: httpx.Client, tag: str | None
) -> None:
    shop.tag, shop.cut = tag, [1 << 20]
    assert Getting(shop, tmp_path, client).run() == CONTENT
    assert shop.seen == [None, None]


def test_a_server_that_knows_no_parts_begins_anew(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    shop.ranges, shop.cut = False, [1 << 20]
    assert Getting(shop, tmp_path, client).run() == CONTENT
    assert shop.seen == [None, "bytes=1048576-"]


def test_one_that_is_there_already_costs_one_question(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    Getting(shop, tmp_path, client).run()
    assert Getting(shop, tmp_path, client).run() == CONTENT
    assert shop.seen == [None, "bytes=2097152-"]
    shop.content = CONTENT[: 1 << 20]
    assert Getting(shop, tmp_path, client).run() == CONTENT[: 1 << 20]


def test_a_server_that_recovers(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    shop.statuses = [503, 429, 500]
    getting = Getting(shop, tmp_path, client)
    assert getting.run() == CONTENT
    assert getting.waits == [1.0, 2.0, 4.0]


def test_a_server_that_does_not(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    shop.statuses = [503] * 9
    getting = Getting(shop, tmp_path, client)
    with pytest.raises(PackError, match=r"stopped \(the server answered 503\); run the same command again"):
        getting.run()
    assert getting.waits == [1.0, 2.0, 4.0, 8.0, 16.0]
    shop.statuses = [404]
    with pytest.raises(PackError, match="the server answered 404"):
        Getting(shop, tmp_path, client).run()


def test_nobody_there(tmp_path: Path, client: httpx.Client) -> None:
    shop = Shop()
    shop.server_close()
    with pytest.raises(PackError, match="the download stopped"):
        Getting(shop, tmp_path, client).run()


def test_another_hash(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    getting = Getting(shop, tmp_path, client, sha256="0" * 64)
    with pytest.raises(PackError, match="another SHA-256"):
        getting.run()
    assert list(tmp_path.iterdir()) == []


def test_no_room(shop: Shop, tmp_path: Path, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PackError, match="not enough room for a download of 2 MiB"):
        Getting(shop, tmp_path, client, free=lambda folder: 65 << 20).run()

    def full(*_more: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "_receive", full)
    with pytest.raises(PackError, match="the disk is full"):
        Getting(shop, tmp_path, client).run()


def test_addresses_that_could_be_changed_on_their_way(shop: Shop, tmp_path: Path, client: httpx.Client) -> None:
    with pytest.raises(PackError, match="only with --sha256"):
        Download("http://example.invalid/p.zip", tmp_path, None, client=client, free=lambda folder: 0)
    Download("http://example.invalid/p.zip", tmp_path, "0" * 64, client=client, free=lambda folder: 0)
    Download("https://example.invalid/p.zip", tmp_path, None, client=client, free=lambda folder: 0)
    assert fetch.is_address("HTTPS://example.invalid")
    assert not fetch.is_address("C:\\packs\\p.zip")


def test_a_redirect_to_such_an_address(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.scheme == "https":
            return httpx.Response(302, headers={"location": "http://other.invalid/p.zip"})
        return httpx.Response(200, content=b"evil")

    with httpx.Client(transport=httpx.MockTransport(answer), follow_redirects=True) as client:
        download = Download("https://example.invalid/p", tmp_path, None, client=client, free=lambda folder: 1 << 40)
        with pytest.raises(PackError, match="only with --sha256"):
            download.run(lambda there, total: None)
    assert list(tmp_path.iterdir()) == []


def test_more_than_was_said(tmp_path: Path) -> None:
    class Answer:
        def iter_raw(self) -> Iterator[bytes]:
            yield b"12345"

    with (tmp_path / "f").open("wb") as target, pytest.raises(PackError, match="more than it said"):
        fetch._receive(Answer(), target, 0, 4, lambda there, total: None)
