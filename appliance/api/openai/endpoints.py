"""``POST /v1/chat/completions`` and ``POST /v1/completions``: plain ASGI endpoints."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from appliance.api.body import Receive, Scope, Send
from appliance.api.context import Context
from appliance.api.generation import speaker
from appliance.api.openai import messages
from appliance.api.openai.choices import guidance_of, tools_of
from appliance.api.openai.requests import Asked, ChatRequest, CompletionRequest, decode, refuse
from appliance.api.openai.texts import awake
from appliance.api.openai.writers import ChatWriter, CompletionWriter
from appliance.api.respond import Headers
from appliance.api.telling import Plan, tell
from appliance.pipelines.language.generate import Generate
from appliance.serving.served import ServedVersion

T = TypeVar("T")
R = TypeVar("R", bound=Asked)

_INLINE = 16 * 1024  # bytes of a body: with more a trip to the thread pool costs less than others would wait


class OpenAI:
    """Both endpoints. Each answers one request and raises ApplianceError for the caller to answer, or to count."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def chat(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        request_id: str,
        receive: Receive,
        send: Send,
        extra: Headers,
    ) -> None:
        request, size = await self._read(ChatRequest, scope, headers, receive)
        served, model = await self._speaker(request, scope, headers)
        plan = await self._chat(request, served, model, request_id, size)
        await tell(self._context, plan, scope, headers, request_id, receive, send, extra)

    async def completions(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        request_id: str,
        receive: Receive,
        send: Send,
        extra: Headers,
    ) -> None:
        request, _ = await self._read(CompletionRequest, scope, headers, receive)
        served, model = await self._speaker(request, scope, headers)
        plan = await self._completion(request, served, model, request_id)
        await tell(self._context, plan, scope, headers, request_id, receive, send, extra)

    async def _read(
        self, form: type[R], scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> tuple[R, int]:
        """The request and its size; its bytes are let go before an answer that may take minutes."""
        context = self._context
        async with context.body(headers, receive) as body:
            size = len(body)
            return await self._offload(size, decode, form, body), size

    async def _speaker(
        self, request: Asked, scope: Scope, headers: dict[bytes, bytes]
    ) -> tuple[ServedVersion, Generate]:
        await awake(self._context, request.model, scope, headers)
        return speaker(self._context, request.model)

    async def _chat(
        self, request: ChatRequest, served: ServedVersion, model: Generate, request_id: str, size: int
    ) -> Plan:
        tools, guidance = tools_of(request, model), guidance_of(request, model)
        more: dict[str, Any] = dict(request.chat_template_kwargs or {})
        if request.reasoning_effort is not None:
            more["reasoning_effort"] = request.reasoning_effort
        told = messages.told(request.messages)
        offered = messages.tools(tools.offered) or None
        text = await self._offload(size, model.prompt, told, offered, more)
        prompt = await model.encode(text, self._context.offload, special=False, field="messages")
        logprobs, field = bool(request.logprobs), "max_tokens" if request.max_tokens else "max_completion_tokens"
        if request.top_logprobs is not None and not logprobs:
            refuse("top_logprobs", "it is for 'logprobs': true")
        most = request.max_tokens or request.max_completion_tokens
        wish = request.sampling(most, logprobs, tools.guidance or guidance)
        options = model.sampling(wish, len(prompt), field if most else "messages")
        names = [tool.function.name for tool in tools.offered]
        answer = model.answer(
            request.stops, tools=names, written=tools.written, one_call=request.parallel_tool_calls is False
        )
        writer = ChatWriter(
            f"chatcmpl-{request_id}",
            int(time.time()),
            request.model,
            request.usage,
            logprobs,
            tools.written,
            model.tokenizer.decode,
        )
        return Plan(served, prompt, options, answer, writer, bool(request.stream))

    async def _completion(
        self, request: CompletionRequest, served: ServedVersion, model: Generate, request_id: str
    ) -> Plan:
        given = request.one_prompt
        if isinstance(given, str):
            prompt = await model.encode(given, self._context.offload, special=True, field="prompt")
        else:
            prompt = model.checked(given, "prompt")
        field = "max_tokens" if request.max_tokens else "prompt"
        options = model.sampling(request.sampling(request.max_tokens, False), len(prompt), field)
        answer = model.answer(request.stops, before=prompt)
        writer = CompletionWriter(f"cmpl-{request_id}", int(time.time()), request.model, request.usage)
        return Plan(served, prompt, options, answer, writer, bool(request.stream))

    async def _offload(self, size: int, work: Callable[..., T], *args: Any) -> T:
        if size <= _INLINE:
            return work(*args)
        offload: Callable[..., Awaitable[T]] = self._context.offload
        return await offload(work, *args)
