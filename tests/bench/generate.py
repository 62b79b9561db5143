"""A language model through its backend, beside the plain loop of the library: same tokens? how fast? what waits?

``python -m tests.bench.generate --model FOLDER [--http]`` with a folder in the format of ONNX Runtime GenAI. The
plain loop and the backend take turns, in one process, so that a slow moment of the machine meets both. With
``--http`` the same loop beside a whole appliance, asked by ``/v1/completions``.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np

from appliance import backends
from appliance.backends.base import LoadRequest, Session
from appliance.models.spec import GenerationOptions, ModelConfig
from tests.support.server import Server

OUTPUTS = ("token_ids", "logprobs", "finish")
SUBJECTS = ("river", "castle", "engine", "garden", "market", "planet", "teacher", "winter", "bridge", "letter")


class Library:
    """The library alone: one ``Generator`` in a loop, the prompt appended at once."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai as og

        self._og = og
        self._model = og.Model(str(folder))
        self.tokenizer = og.Tokenizer(self._model)

    def answer(self, prompt: Any, tokens: int, ends: bool = True) -> tuple[list[int], float]:
        """The tokens with the end, and seconds from the first token to the last."""
        params = self._og.GeneratorParams(self._model)
        length = len(prompt) + tokens
        params.set_search_options(max_length=length, min_length=0 if ends else length, do_sample=False)
        generator = self._og.Generator(self._model, params)
        generator.append_tokens(prompt)
        said: list[int] = []
        started = 0.0
        while not generator.is_done():
            generator.generate_next_token()
            said.append(int(generator.get_next_tokens()[0]))
            started = started or time.perf_counter()
        return said, time.perf_counter() - started


class Answer(threading.Thread):
    """One stream of the backend. ``at``: when each part came; ``said``: its tokens."""

    def __init__(self, session: Session, prompt: Any, tokens: int, ends: bool = True) -> None:
        super().__init__(daemon=True)
        options = np.empty(1, dtype=object)
        asked = GenerationOptions(max_tokens=tokens, temperature=0, ignore_end=not ends)
        options[0] = msgspec.json.encode(asked)
        self._inputs = {"input_ids": np.asarray(prompt, np.int32), "options": options}
        self._session = session
        self.handle = session.cancellation()
        self.said: list[int] = []
        self.at: list[float] = []
        self.asked = self.over = 0.0
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        self.asked = time.perf_counter()
        try:
            for ids, _, _ in self._session.stream(self._inputs, OUTPUTS, self.handle):
                self.said += ids.tolist()
                self.at += [time.perf_counter()] * len(ids)
        except Exception as error:
            self.error = error
        self.over = time.perf_counter()

    def rate(self) -> float:
        return (len(self.at) - 1) / (self.at[-1] - self.at[0])


def together(times: list[list[float]]) -> float:
    """Tokens a second of all streams while all of them speak."""
    first, last = max(at[0] for at in times), min(at[-1] for at in times)
    return sum(first < one <= last for at in times for one in at) / (last - first)


def prompts(library: Library, count: int) -> list[Any]:
    """Short questions, each of its own."""
    texts = [f"Tell me {n + 3} things about the {SUBJECTS[n % 10]} of my country, and why." for n in range(count)]
    return [library.tokenizer.encode(text) for text in texts]


def long_prompt(library: Library, tokens: int) -> Any:
    text = " ".join(f"The {SUBJECTS[n % 10]} number {n} was old and near the water." for n in range(tokens))
    return library.tokenizer.encode(text)[:tokens]


def same(session: Session, library: Library, tokens: int) -> Iterator[str]:
    """Greedy answers to 20 prompts: the library's, the backend's alone, the backend's among 8 others."""
    asked = prompts(library, 20)
    ends = set(session.opened.generation.ends if session.opened.generation else ())
    expected = [[t for t in library.answer(prompt, tokens)[0] if t not in ends] for prompt in asked]
    alone = 0
    for prompt, wanted in zip(asked, expected, strict=True):
        answer = Answer(session, prompt, tokens)
        answer.join()
        alone += answer.said == wanted
    among, others, over = 0, [], threading.Event()

    def keep_asking(n: int) -> None:
        while not over.is_set():
            answer = Answer(session, asked[(n * 7) % 20][: 3 + n], tokens)
            answer.join()
            others.append(len(answer.said))

    crowd = [threading.Thread(target=keep_asking, args=(n,), daemon=True) for n in range(8)]
    for one in crowd:
        one.start()
    for prompt, wanted in zip(asked, expected, strict=True):
        answer = Answer(session, prompt, tokens)
        answer.join()
        among += answer.said == wanted
    over.set()
    for one in crowd:
        one.join()
    yield f"identical to the library alone: {alone}/20 alone, {among}/20 among 8 others ({len(others)} other answers)"


def speed(session: Session, library: Library, tokens: int, rounds: int) -> Iterator[str]:
    (prompt,) = prompts(library, 1)
    pairs = []
    for _ in range(rounds):
        said, seconds = library.answer(prompt, tokens, ends=False)
        answer = Answer(session, prompt, tokens, ends=False)
        answer.join()
        pairs.append(((len(said) - 1) / seconds, answer.rate()))
    plain, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    yield f"one stream: library {plain:.1f} tokens/s, backend {ours:.1f} ({ours / plain:.1%}; medians of {rounds})"
    for count in (2, 4, 8):
        crowd = [Answer(session, prompt, tokens, ends=False) for _ in range(count)]
        for one in crowd:
            one.join()
        total = together([one.at for one in crowd])
        yield f"{count} streams: {total:.1f} tokens/s together ({total / ours:.1%} of one stream's)"


def waits(session: Session, library: Library, tokens: int) -> Iterator[str]:
    """What a long prompt does to a stream that speaks, and how soon a cancelled one is gone."""
    generation = session.opened.generation
    assert generation is not None
    (short,) = prompts(library, 1)
    size = min(4000, generation.context // 2)
    speaker = Answer(session, short, min(1500, generation.context - len(short)), ends=False)
    while len(speaker.at) < 50:
        time.sleep(0.01)
    started = len(speaker.at)
    reader = Answer(session, long_prompt(library, size), 8, ends=False)
    time.sleep(0.02)
    guest = Answer(session, short, 8, ends=False)
    reader.join()
    during = np.diff(np.unique(speaker.at[started:]))  # of parts: tokens that come together count once
    before = np.diff(np.unique(speaker.at[:started]))
    speaker.handle.cancel()
    speaker.join()
    yield (
        f"a prompt of {size} tokens beside a stream: between its parts {statistics.median(before) * 1e3:.1f} ms "
        f"before, then median {statistics.median(during) * 1e3:.0f}, most {max(during) * 1e3:.0f} ms; the long "
        f"prompt's first token after {reader.at[0] - reader.asked:.2f} s, a short one's behind it after "
        f"{guest.at[0] - guest.asked:.2f} s"
    )
    took = []
    for n in range(20):
        crowd = [Answer(session, short, tokens, ends=False) for _ in range(1 + n % 4)]
        crowd.append(Answer(session, long_prompt(library, size), 8, ends=False))
        time.sleep(0.15 + 0.01 * n)
        for one in crowd:
            at = time.perf_counter()
            one.handle.cancel()
            one.join()
            took.append(one.over - at)
    yield f"cancelled and gone: median {statistics.median(took) * 1e3:.0f} ms, most {max(took) * 1e3:.0f} ms"


class Call(threading.Thread):
    """One stream over HTTP. ``at``: when each of its events came; closed early after ``stop`` of them."""

    def __init__(self, url: str, text: str, tokens: int, stop: int | None = None) -> None:
        super().__init__(daemon=True)
        self._url, self._early = url, stop
        self._body = {"model": "m", "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        self.at: list[float] = []
        self.asked = self.over = 0.0
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=120, trust_env=False) as client:
            self.asked = time.perf_counter()
            with client.stream("POST", "/v1/completions", json=self._body | {"stream": True}) as got:
                assert got.status_code == 200, got.read()
                for line in got.iter_lines():
                    if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                        self.at.append(time.perf_counter())
                    if self._early is not None and len(self.at) >= self._early:
                        break
        self.over = time.perf_counter()


def over_http(folder: Path, library: Library, tokens: int, rounds: int) -> Iterator[str]:
    text = f"Tell me 3 things about the {SUBJECTS[0]} of my country, and why."
    with tempfile.TemporaryDirectory() as temp, _server(Path(temp), folder) as server:
        Call(server.url, text, 8).join()
        pairs = []
        for _ in range(rounds):
            said, seconds = library.answer(library.tokenizer.encode(text), tokens, ends=False)
            call = Call(server.url, text, tokens)
            call.join()
            # Some tokens have no text of their own: so by the time of all, not by the count of events.
            pairs.append(((len(said) - 1) / seconds, (tokens - 1) / (call.at[-1] - call.at[0])))
        plain, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
        yield f"one stream over HTTP: library {plain:.1f} tokens/s, appliance {ours:.1f} ({ours / plain:.1%})"
        crowd = [Call(server.url, text, tokens) for _ in range(8)]
        for one in crowd:
            one.join()
        yield f"8 streams over HTTP: {together([one.at for one in crowd]):.1f} events/s together"
        took = []
        for _ in range(20):
            call = Call(server.url, text, 400, stop=10)
            call.join()
            while server.status()["queue"]["running"]:
                time.sleep(0.002)
            took.append(time.perf_counter() - call.over)
        yield f"left, and its slot is free: median {statistics.median(took) * 1e3:.0f}, most {max(took) * 1e3:.0f} ms"


def _server(temp: Path, folder: Path) -> Server:
    server = Server(temp)
    shutil.copytree(folder, server.models / "m")
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--http", action="store_true")
    asked = parser.parse_args()
    folder = asked.model.resolve()
    if asked.http:
        for line in over_http(folder, Library(folder), asked.tokens, asked.rounds):
            print(line, flush=True)
        return
    session = backends.get("genai").open(
        LoadRequest("bench", folder, folder, "cpu", 0, ModelConfig(backend_options={"streams": 16}))
    )
    library = Library(folder)
    print(session.opened.generation, session.opened.notes)
    for table in (same(session, library, 60), speed(session, library, asked.tokens, asked.rounds)):
        for line in table:
            print(line, flush=True)
    for line in waits(session, library, asked.tokens):
        print(line, flush=True)
    session.close()


if __name__ == "__main__":
    main()
