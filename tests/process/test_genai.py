"""A language model in a real engine process: streams side by side, one that is cancelled, the engine's death."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("onnxruntime_genai")

from appliance.engine.client import EngineClient, EngineDied
from appliance.engine.messages import Load
from appliance.errors import Cancelled, InvalidInput
from appliance.models.repository import Root, scan
from appliance.models.spec import GenerationOptions
from appliance.models.tensors import Tensor, from_array, to_array
from appliance.serving.check import start_engine
from appliance.serving.load_order import load_message
from appliance.settings import Settings
from tests.support import language, speech
from tests.support.server import Server

OUTPUTS = ("token_ids", "logprobs", "finish")
LIMIT_S = 60


class Stream:
    """One answer over the socket: ``said``, ``finish``, and ``over`` with what the client was told in the end."""

    def __init__(self, client: EngineClient, handle: int, prompt: list[int], **options: Any) -> None:
        told = np.empty(1, dtype=object)
        told[0] = msgspec.json.encode(GenerationOptions(**{"max_tokens": 5, "temperature": 0, **options}))
        item = [from_array("input_ids", np.array(prompt, np.int32)), from_array("options", told)]
        self.said: list[int] = []
        self.finish: list[bytes] = []
        self.some = asyncio.Event()
        self.over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.id = client.run(handle, [item], OUTPUTS, self.over.set_result, self._chunk)

    def _chunk(self, tensors: list[Tensor]) -> None:
        ids, _, finish = (to_array(tensor) for tensor in tensors)
        self.said += ids.tolist()
        self.finish += finish.tolist()
        if len(self.said) >= 20:
            self.some.set()

    async def done(self) -> Any:
        return await asyncio.wait_for(self.over, LIMIT_S)


@asynccontextmanager
async def engine(folder: Path) -> AsyncIterator[tuple[EngineClient, int, int]]:
    """An engine that has loaded the model: its client, its process, the model's handle."""
    language.sums(folder / "models" / "llm", context=100_000)
    model = scan([Root(folder / "models")])["llm"]
    settings = Settings(state=folder / "state", models=folder / "models", device="cpu")
    process, client = await start_engine(None, folder / "state")
    try:
        message: Load = load_message(settings, model, model.files[0], 1)
        loaded = await asyncio.wait_for(client.load(message), LIMIT_S)
        assert loaded.spec.generation is not None
        assert loaded.spec.lanes == loaded.spec.generation.streams == 8
        yield client, process.pid, 1
    finally:
        client.stop()
        if process.poll() is None:
            process.kill()
        await asyncio.to_thread(process.wait, LIMIT_S)


def test_streams_side_by_side_and_what_ends_them(folder: Path) -> None:
    async def story() -> None:
        async with engine(folder) as (client, _, handle):
            prompts = [[(n * k + 1) % 32 for k in range(1, 5 + 90 * n)] for n in range(8)]
            streams = [Stream(client, handle, prompt, max_tokens=30) for prompt in prompts]
            for prompt, stream in zip(prompts, streams, strict=True):
                assert not isinstance(await stream.done(), Exception)
                assert stream.said == language.greedy(prompt, 30)
                assert stream.finish in ([b"stop"], [b"length"])
            spoken = Stream(client, handle, [3], max_tokens=90_000, ignore_end=True)
            await asyncio.wait_for(spoken.some.wait(), LIMIT_S)
            beside = Stream(client, handle, [5, 6, 7], max_tokens=10)
            wrong = Stream(client, handle, [99])
            client.cancel(spoken.id)
            assert isinstance(await spoken.done(), Cancelled)
            assert 20 <= len(spoken.said) < 90_000
            assert isinstance(await wrong.done(), InvalidInput)
            await beside.done()
            assert (beside.said, beside.finish) == ([19, 6, 12, 24, 16], [b"stop"])

    asyncio.run(story())


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_the_engines_death_ends_a_stream_with_an_error(folder: Path) -> None:
    async def story() -> None:
        async with engine(folder) as (client, pid, handle):
            stream = Stream(client, handle, [3], max_tokens=90_000, ignore_end=True)
            await asyncio.wait_for(stream.some.wait(), LIMIT_S)
            os.kill(pid, signal.SIGKILL)
            assert isinstance(await stream.done(), EngineDied)
            assert stream.finish == []

    asyncio.run(story())


def test_the_appliance_takes_a_folder_as_it_is(folder: Path) -> None:
    speech.beside(language.sums(folder / "models" / "llm", vocabulary=speech.VOCABULARY))
    with Server(folder) as server:
        (model,) = server.status()["models"]
        assert (model["name"], model["ready"]) == ("llm", True)
        told = server.client.get("/v2/models/llm").json()
        assert told["platform"] == "onnxruntime_genai"
        assert [t["name"] for t in told["inputs"]] == ["input_ids", "options"]
