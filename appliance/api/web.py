"""The dashboard: one page and its files, served from the package. All of them are read once, at the first call."""

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from appliance.errors import NotFound
from appliance.system import paths

_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

# Nothing from elsewhere, nothing inline, no text that becomes code; in no other page's frame.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "cache-control": "no-cache",  # kept, and asked for anew by its ETag: an update is seen at once
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}


class _File(NamedTuple):
    kind: str
    content: bytes
    etag: str


def router() -> APIRouter:
    """``/`` and ``/web/…``. They need no key: what they show comes from routes that do."""
    routes = APIRouter(include_in_schema=False)

    @cache
    def files() -> dict[str, _File]:
        return dict(_read())

    def answer(request: Request, name: str) -> Response:
        found = files().get(name)
        if found is None:
            raise NotFound(f"there is nothing at /web/{name[:128]}")
        headers = {**_HEADERS, "etag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.kind)

    @routes.get("/")
    async def page(request: Request) -> Response:
        return answer(request, "index.html")

    @routes.get("/web/{name:path}")
    async def file(request: Request, name: str) -> Response:
        return answer(request, name)

    return routes


def _read() -> Iterator[tuple[str, _File]]:
    """Each file by its path below ``/web/``. A request is only ever looked up in these."""
    for root, prefix in ((paths.web(), ""), (paths.assets() / "samples", "samples/")):
        for path in sorted(root.rglob("*")):
            if path.suffix in _KINDS and path.is_file():
                yield prefix + path.relative_to(root).as_posix(), _loaded(path)


def _loaded(path: Path) -> _File:
    content = path.read_bytes()
    return _File(_KINDS[path.suffix], content, f'"{hashlib.sha256(content).hexdigest()[:24]}"')
