"""Many callers of a language model at once, and what the appliance's ledger says meanwhile."""

import json
import threading
import time
from typing import Any

import httpx

from tests.support.server import Server

WHOLE, REFUSED, BROKEN = "whole", "refused", "broken"


class Try:
    """One request. ``end``: ``whole`` ([DONE] came), ``refused`` (a status), ``broken`` (an error event in an answer
    that had begun), or what no design has: ``cut`` (an end without either), an exception's name.

    Seconds since it was asked: ``first`` (its first text; 0: none came) and ``total``.
    """

    def __init__(self) -> None:
        self.text = ""
        self.end = "cut"
        self.status = 0
        self.code = ""
        self.first = self.total = 0.0


class Caller(threading.Thread):
    """Asks for one streamed completion, and again after an error, ``most`` times in all. ``tries``: each of them."""

    def __init__(self, server: Server, model: str, prompt: Any, tokens: int, most: int = 1, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._url = server.url
        self._body = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0}
        self._body |= fields
        self._most = most
        self.prompt = prompt
        self.tries: list[Try] = []
        self.start()

    @property
    def last(self) -> Try:
        return self.tries[-1]

    def run(self) -> None:
        for _ in range(self._most):
            self.tries.append(self._try())
            if self.last.end == WHOLE:
                return
            time.sleep(0.2)

    def _try(self) -> Try:
        made, asked = Try(), time.perf_counter()
        try:
            with (
                httpx.Client(base_url=self._url, timeout=600, trust_env=False) as client,
                client.stream("POST", "/v1/completions", json=self._body) as got,
            ):
                made.status = got.status_code
                if made.status != 200:
                    made.end, made.code = REFUSED, json.loads(got.read())["error"]["code"]
                for line in got.iter_lines():
                    self._event(made, line, asked)
        except httpx.HTTPError as error:
            made.end = type(error).__name__
        made.total = time.perf_counter() - asked
        return made

    def _event(self, made: Try, line: str, asked: float) -> None:
        if line == "data: [DONE]":
            made.end = WHOLE
        elif line.startswith("data: "):
            told = json.loads(line[6:])
            if "error" in told:
                made.end, made.code = BROKEN, told["error"]["code"]
            elif text := told["choices"][0]["text"]:
                made.first = made.first or time.perf_counter() - asked
                made.text += text


class Ledger:
    """Looks at a device's ledger all the time. Use as a context manager.

    ``most``: most bytes of runs that were booked at once; ``running``: most runs; ``over``: times that weights and
    runs together were more than the ceiling; ``ran_out``: runs that ran out of memory.
    """

    def __init__(self, server: Server, device: str) -> None:
        self._server = server
        self._device = device
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.most = self.running = self.over = self.ran_out = self.looks = 0

    def __enter__(self) -> "Ledger":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(10)

    def _run(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=30, trust_env=False) as client:
            while not self._end.wait(0.02):
                status = client.get("/api/status").json()
                told = status["memory"].get(self._device)
                if told is None:
                    continue
                self.looks += 1
                self.most = max(self.most, told["in_flight"])
                self.running = max(self.running, status["queue"]["running"])
                self.over += told["known"] and told["weights"] + told["in_flight"] > told["ceiling"]
                self.ran_out = max(self.ran_out, told["out_of_memory"])
