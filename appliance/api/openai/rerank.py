"""``POST /v1/rerank``: a question and documents → which answer it best, as Cohere's and Jina's clients ask. ASGI."""

from typing import Annotated, Any

import msgspec

from appliance.api.body import Receive, Scope, Send
from appliance.api.context import Context
from appliance.api.disconnect import Disconnect
from appliance.api.openai.texts import decode, pipeline_of, send_told
from appliance.api.predict import GateCaller
from appliance.api.respond import Headers
from appliance.pipelines.rerank import Ranked, Rerank


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A document in the long form."""

    text: str


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """The body. ``top_n``: how many of the best are told, None: all. ``truncate``: as for embeddings."""

    model: str
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, msgspec.Meta(ge=1)] | None = None
    return_documents: bool = False
    truncate: bool | None = None


class Reranking:
    """The route."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __call__(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        request_id: str,
        receive: Receive,
        send: Send,
        extra: Headers,
    ) -> None:
        """Answer one request. Raises ApplianceError for the caller to answer."""
        context = self._context
        async with context.body(headers, receive) as body:
            request = await decode(context, body, Request)
            documents = [document if isinstance(document, str) else document.text for document in request.documents]
            pipeline = await pipeline_of(context, request.model, Rerank, "a reranking", scope, headers)
            caller = GateCaller(context, request.model, headers, request_id)
            with Disconnect(receive):
                found = await pipeline.rank(request.query, documents, caller, request.truncate)
        await send_told(context, caller, found.texts, write(request, documents, found), request_id, send, extra)


def write(request: Request, documents: list[str], found: Ranked) -> bytes:
    """The answer's JSON, the best document first; of equal ones the one that was named first."""
    order = sorted(range(len(documents)), key=lambda index: (-found.scores[index], index))
    results = []
    for index in order[: request.top_n]:
        entry: dict[str, Any] = {"index": index, "relevance_score": found.scores[index]}
        if request.return_documents:
            entry["document"] = {"text": documents[index]}
        text = found.texts[index]
        if text.whole > len(text.ids):
            entry["truncated_from"] = text.whole
        results.append(entry)
    usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    return msgspec.json.encode({"object": "list", "model": request.model, "results": results, "usage": usage})
