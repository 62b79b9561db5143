"""A language model, where ONNX Runtime GenAI is installed, and what makes one here."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from tests.gpu.lab import Group, Lab, version
from tests.gpu.report import Row, judged, skipped
from tests.support.server import Server

PROMPTS = ("a", "What is it?", "x" * 40)
TOKENS = 12


def why_not(lab: Lab) -> str | None:
    """Why no language model can be checked, or None."""
    if not lab.machine.genai.told:
        return lab.machine.genai.why
    for package in ("onnx", "tokenizers"):
        if importlib.util.find_spec(package) is None:
            return f"the model is made with the package {package}, which is not installed"
    return None


def models(lab: Lab, folder: Path) -> None:
    from tests.support import language, speech

    speech.beside(language.sums(folder / "language", vocabulary=speech.VOCABULARY, context=256))


def language_model(lab: Lab, server: Server) -> Iterator[Row]:
    from tests.support import language, speech

    found = version(server, "language")
    check = f"real device: ONNX Runtime GenAI {lab.machine.genai.told['version']}"
    reason = f", because: {found['device_reason']}" if found["device_reason"] else ""
    if lab.gpu and not lab.machine.genai.told["cuda"]:
        yield skipped(check, f"this build is without CUDA; it runs on {found['device']}{reason}")
    else:
        good = found["device"] == lab.device and not reason
        yield judged(check, lab.device, f"{found['device']}{reason}", good)
    right, words = 0, []
    for prompt in PROMPTS:
        asked = {"model": "language", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        got = server.client.post("/v1/completions", json=asked)
        if got.status_code == 404 and "language" not in got.text:
            yield skipped("a language model's answers", "this appliance has no route for them")
            return
        wanted = speech.tokenizer().decode(
            language.greedy(speech.tokenizer().encode(prompt).ids, TOKENS, speech.VOCABULARY)
        )
        text = got.json()["choices"][0]["text"] if got.status_code == 200 else got.text
        right += text == wanted
        words += [] if text == wanted else [f"{text!r}, not {wanted!r}"]
    figures = f"{right} of {len(PROMPTS)}{'; ' + words[0] if words else ''}"
    yield judged("a language model's answers", "as worked out by hand", figures, right == len(PROMPTS))


GROUP = Group("language", models, (language_model,), why_not=why_not)
