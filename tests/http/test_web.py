"""The dashboard's files as they are served."""

import re
from pathlib import Path

import pytest

from tests.http.helpers import refused
from tests.support.server import ROOT, Server

WEB = ROOT / "appliance" / "web"
FILES = sorted(p.relative_to(WEB).as_posix() for p in WEB.rglob("*") if p.is_file())


def test_the_page(tensors: Server) -> None:
    page = tensors.client.get("/")
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["connect-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
    assert page.headers["x-frame-options"] == "DENY" and page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page.text), "nothing inline"
    assert "://" not in page.text
    for link in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
        assert tensors.client.get(link).status_code == 200, link


@pytest.mark.parametrize("name", FILES)
def test_every_file(tensors: Server, name: str) -> None:
    answer = tensors.client.get(f"/web/{name}")
    assert answer.status_code == 200 and answer.content == (WEB / name).read_bytes()
    assert answer.headers["cache-control"] == "no-cache" and "content-security-policy" in answer.headers
    again = tensors.client.get(f"/web/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == answer.headers["etag"]
    kinds = {
        ".js": "text/javascript",
        ".css": "text/css",
        ".svg": "image/svg+xml",
        ".html": "text/html",
        ".txt": "text/",
    }
    assert answer.headers["content-type"].startswith(kinds[Path(name).suffix])


def test_head(tensors: Server) -> None:
    answer = tensors.client.head("/web/js/main.js")
    assert answer.status_code == 200 and answer.content == b""
    assert int(answer.headers["content-length"]) == (WEB / "js" / "main.js").stat().st_size


def test_the_samples(tensors: Server) -> None:
    folder = ROOT / "assets" / "samples"
    for photo in folder.glob("*.jpg"):
        answer = tensors.client.get(f"/web/samples/{photo.name}")
        assert answer.headers["content-type"] == "image/jpeg" and answer.content == photo.read_bytes()
        assert len(answer.content) < 64 * 1024
        assert f"| {photo.name} |" in (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    "path",
    [
        "/web/", "/web/nothing.js", "/web/../pyproject.toml", "/web/%2e%2e/pyproject.toml",
        "/web/..%2fpyproject.toml", "/web//etc/passwd",
        "/web/js", "/web/js/../../LICENSE", "/web/samples/README.md", "/web/js%5cmain.js",
    ],
)  # fmt: skip
def test_nothing_else_is_served(tensors: Server, path: str) -> None:
    request = tensors.client.build_request("GET", tensors.url)
    request.url = request.url.copy_with(raw_path=path.encode())
    refused(tensors.client.send(request), 404, "not_found")


def test_no_file_is_long_or_loads_from_elsewhere() -> None:
    for path in WEB.rglob("*"):
        if not path.is_file() or path.parent.name == "vendor":
            continue
        text = path.read_text("utf-8")
        assert len(text.splitlines()) <= 300, path.name
        assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= {"http://www.w3.org/2000/svg"}, path.name
        assert "innerHTML" not in text and "eval(" not in text, path.name
