"""An answer of a language model as one body or as server-sent events, whatever the surface's form of it."""

import asyncio
import contextlib
from typing import NamedTuple, Protocol

from appliance.api.body import Receive, Scope, Send
from appliance.api.context import Context
from appliance.api.disconnect import Disconnect
from appliance.api.errors import body_of, internal
from appliance.api.generation import Run
from appliance.api.respond import Headers, send_body
from appliance.errors import ApplianceError, Cancelled, InferenceTimeout
from appliance.models.spec import GenerationOptions
from appliance.pipelines.language.answer import Answer, Piece
from appliance.serving.served import ServedVersion

KEEP_ALIVE_S = 15.0
"""So long nothing is told before a comment line is, and so long errors have a status of their own."""

_EVENTS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_WAITING = b": waiting\n\n"
_ERROR_S = 1.0


class Writer(Protocol):
    """A surface's form of an answer. ``prompt``, ``count``: tokens of both."""

    def events(self, piece: Piece) -> bytes:
        """Server-sent events of a piece, b"" where there is nothing to tell."""
        ...

    def last(self, prompt: int, count: int) -> bytes:
        """What ends a stream that is whole."""
        ...

    def whole(self, piece: Piece, prompt: int, count: int) -> bytes:
        """The JSON of all pieces together."""
        ...


class Plan(NamedTuple):
    """What a request was found to ask for. ``prompt``: token ids."""

    served: ServedVersion
    prompt: list[int]
    options: GenerationOptions
    answer: Answer
    writer: Writer
    stream: bool


async def tell(
    context: Context,
    plan: Plan,
    scope: Scope,
    headers: dict[bytes, bytes],
    request_id: str,
    receive: Receive,
    send: Send,
    extra: Headers,
) -> None:
    """Run it and answer. Raises ApplianceError: for the caller to answer where nothing was told yet, else for it to
    count."""
    run = Run(context, plan.served, plan.prompt, plan.options, headers, request_id)
    own: Headers = [(b"x-request-id", request_id.encode()), *extra]
    try:
        with Disconnect(receive):
            if plan.stream:
                await _Stream(run, plan, scope["path"], request_id, send, own).tell()
            else:
                await _whole(run, plan, send, own)
    finally:
        await run.close()


async def _whole(run: Run, plan: Plan, send: Send, headers: Headers) -> None:
    answer, all_of_it = plan.answer, Piece(calls=[], tokens=[])
    texts: list[str] = []
    while not all_of_it.finish:
        piece = answer.feed(await run.part())
        texts.append(piece.text)
        all_of_it.calls += piece.calls
        all_of_it.tokens += piece.tokens
        all_of_it.finish = piece.finish
    run.enough()
    all_of_it.text = "".join(texts)
    body = plan.writer.whole(all_of_it, run.prompt, answer.count)
    await send_body(send, [body], [(b"content-type", b"application/json"), *headers, *run.timing()])


class _Stream:
    """One answer in events. Its head is sent with the first of them, so that what fails before has a status."""

    def __init__(self, run: Run, plan: Plan, path: str, request_id: str, send: Send, headers: Headers) -> None:
        self._run = run
        self._plan = plan
        self._path = path
        self._id = request_id
        self._send = send
        self._headers = headers
        self._begun = False

    async def tell(self) -> None:
        """Raises the request's error, after an event of it where the answer has begun: never [DONE] then."""
        run = self._run
        try:
            while not await run.begin(KEEP_ALIVE_S):
                await self._put(_WAITING)
            first = await run.part()
            async with run.patience():
                await self._pieces(plan=self._plan, piece=self._plan.answer.feed(first))
        except TimeoutError:
            raise InferenceTimeout("the client did not read its answer in time") from None
        except Cancelled:
            raise
        except ApplianceError as error:
            await self._failed(error)
            raise
        except Exception:
            await self._failed(internal(self._id))
            raise

    async def _pieces(self, plan: Plan, piece: Piece) -> None:
        run, answer, writer = self._run, plan.answer, plan.writer
        loop = asyncio.get_running_loop()
        told_at = loop.time()
        while not piece.finish:
            data = writer.events(piece)
            if data or loop.time() - told_at > KEEP_ALIVE_S:
                await self._put(data or _WAITING)
                told_at = loop.time()
            piece = answer.feed(await run.part())
        run.enough()
        await self._put(writer.events(piece) + writer.last(run.prompt, answer.count), more=False)

    async def _put(self, data: bytes, more: bool = True) -> None:
        if not self._begun:
            self._begun = True
            headers = [*_EVENTS, *self._headers, *self._run.timing(stream=True)]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _failed(self, error: ApplianceError) -> None:
        if self._begun:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ERROR_S):
                    await self._put(b"data: " + body_of(error, self._path, self._id) + b"\n\n", more=False)
