"""How the tray opens the dashboard where a key is needed: with a code in the address, good once, for a minute."""

import time

import msgspec
from fastapi import APIRouter, Request, Response

from appliance.api.context import Context
from appliance.api.oip_meta import json
from appliance.api.state import from_here
from appliance.errors import Forbidden, InvalidInput, Unauthorized

_MOST = 1024


class Session(msgspec.Struct):
    """The body."""

    code: str


def router(context: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["Health and state"])

    @routes.post(
        "/api/session", summary="The tray's one-time code for this program's own key; only from this machine"
    )
    async def session(request: Request) -> Response:
        """Body: `{"code": "…"}`. Needs no key. The key ends with the program."""
        if not from_here(request):
            raise Forbidden("only programs of this machine may open a session")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST:
                raise InvalidInput(f"the body is over {_MOST} bytes", param="body")
        try:
            told = msgspec.json.decode(body, type=Session)
        except msgspec.DecodeError:
            raise InvalidInput('the body must be {"code": "…"}', param="code") from None
        if not context.keys.welcome(told.code, time.monotonic()):
            raise Unauthorized("this code was used already, or is older than a minute")
        return json({"key": context.keys.local})

    return routes
