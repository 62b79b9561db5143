"""``/v1/embeddings`` and ``/v1/rerank`` as clients call them."""

import base64
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.http.conftest import fake, watched
from tests.http.helpers import curl
from tests.support import nets
from tests.support.models import VARIABLE, at_hand
from tests.support.server import ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "unit" / "pipelines"))
import text_models

SENTENCE = "How do I change my password?"
PARAPHRASE = "What is the way to reset my login password?"
UNRELATED = "The volcano covered the whole valley in ash."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance with the small networks, and MiniLM where it is at hand."""
    server = Server(tmp_path_factory.mktemp("texts"), max_body_bytes=4 << 20)
    text_models.embedder(server.models / "small")
    (server.models / "small" / "model.toml").write_text(
        '[pipeline]\ntask = "embed"\nnormalize = false\nmax_tokens = 6\nmax_texts = 100\nmax_characters = 500\n'
        "dimensions = [2]\n"
    )
    text_models.scorer(server.models / "scorer")
    (server.models / "scorer" / "model.toml").write_text('[pipeline]\ntask = "rerank"\nmax_tokens = 12\n')
    text_models.quantiser(server.models / "quantiser")
    nets.scale(server.models / "scale.onnx")
    fake(server, "slow", "run_ms = 2500")
    minilm = at_hand("embed/minilm")
    if minilm is not None:  # as it is, without a model.toml
        shutil.copytree(minilm, server.models / "minilm")
    with watched(server):
        yield server


@pytest.fixture
def minilm(server: Server) -> Server:
    if not (server.models / "minilm").exists():
        pytest.skip(f"embed/minilm is not at hand; {VARIABLE} names the folder of models for tests")
    return server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(server: Server, path: str = "/v1/embeddings", **body: Any) -> httpx.Response:
    return server.client.post(path, json=body)


def refused(answer: httpx.Response, status: int, code: str, param: str | None, *words: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    for word in words:
        assert word in error["message"], error


def test_a_paraphrase_is_near_and_another_subject_is_not(minilm: Server, client: openai.OpenAI) -> None:
    found = client.embeddings.create(model="minilm", input=[SENTENCE, PARAPHRASE, UNRELATED])
    one, near, far = (np.array(entry.embedding) for entry in found.data)
    assert one.shape == (384,)
    np.testing.assert_allclose([np.linalg.norm(v) for v in (one, near, far)], 1, atol=1e-6)
    assert one @ near > 0.6
    assert one @ far < 0.2


def test_the_vectors_are_those_of_the_model_used_alone(minilm: Server, client: openai.OpenAI) -> None:
    """ONNX Runtime, the tokenizer and plain numpy, one text at a time."""
    import onnxruntime
    from tokenizers import Tokenizer

    texts = [
        SENTENCE,
        UNRELATED,
        "one",
        "Ünïcode, 漢字 and \N{ROCKET} too.",
        "word " * 400,
        "The quick brown fox. " * 9,
    ]
    found = client.embeddings.create(model="minilm", input=texts)
    folder = minilm.models / "minilm"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()  # it cuts to 128 tokens itself
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    total = 0
    for text, entry in zip(texts, found.data, strict=True):
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        total += ids.size
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (tokens,) = session.run(None, feeds)
        vector = tokens[0].astype(np.float64).sum(axis=0) / ids.size
        vector /= np.sqrt((vector * vector).sum())
        np.testing.assert_allclose(entry.embedding, vector, atol=2e-6)
    assert found.usage.prompt_tokens == found.usage.total_tokens == total


def test_base64_is_the_same_as_float(server: Server, client: openai.OpenAI) -> None:
    texts = ["w1 w2", "w3"]
    plain = ask(server, model="small", input=texts, encoding_format="float").json()["data"]
    packed = ask(server, model="small", input=texts, encoding_format="base64").json()["data"]
    for a, b in zip(plain, packed, strict=True):
        assert np.frombuffer(base64.b64decode(b["embedding"]), "<f4").tolist() == a["embedding"]
    # The client asks for base64 by itself, and unpacks it.
    assert [entry.embedding for entry in client.embeddings.create(model="small", input=texts).data] == [
        entry["embedding"] for entry in plain
    ]


def test_many_texts_give_what_each_gives_alone(minilm: Server, client: openai.OpenAI) -> None:
    """Within 1e-5 of a component: matrices of another size are summed in another order."""
    random = np.random.default_rng(3)
    words = (ROOT / "docs" / "architecture.md").read_text("utf-8").split()
    texts = [" ".join(random.choice(words, size)) for size in random.integers(1, 60, 40)]
    together = client.embeddings.create(model="minilm", input=texts)
    for text, entry in zip(texts, together.data, strict=True):
        alone = client.embeddings.create(model="minilm", input=text).data[0]
        np.testing.assert_allclose(entry.embedding, alone.embedding, atol=1e-5)


def test_a_model_whose_texts_change_each_other_runs_them_one_by_one(server: Server) -> None:
    texts = ["w1 w2", "w5 w9 w77 w120 w33", "w199", "w1 w1 w1 w1"]

    def runs(model: str) -> int:
        stats = server.client.get(f"/v2/models/{model}/stats").json()["model_stats"][0]
        return int(stats["execution_count"])

    assert "changes with its neighbours" in server.client.get("/v2/models/quantiser").json()["parameters"]["notes"][0]
    before = runs("quantiser")
    together = ask(server, model="quantiser", input=texts).json()["data"]
    assert runs("quantiser") == before + len(texts)
    for text, entry in zip(texts, together, strict=True):
        assert ask(server, model="quantiser", input=text).json()["data"][0]["embedding"] == entry["embedding"]
    before = runs("small")
    ask(server, model="small", input=texts)
    assert runs("small") == before + 1, "these do not, and share a run"


def test_the_answer(server: Server) -> None:
    answer = ask(server, model="small", input="w1")
    # By hand: the mean of (id, id², 1) over [CLS]=1, w1=11, [SEP]=2.
    assert answer.json() == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [14 / 3, 42, 1]}],
        "model": "small",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    } | {"data": [{"object": "embedding", "index": 0, "embedding": [pytest.approx(14 / 3), 42, 1]}]}
    assert answer.headers["x-device"] == "cpu"
    assert "infer;dur" in answer.headers["server-timing"]
    assert "x-truncated" not in answer.headers


def test_every_form_of_input(server: Server) -> None:
    first = ask(server, model="small", input="w1").json()["data"][0]["embedding"]
    for given, count in ((["w1"], 1), ([1, 11, 2], 1), ([[1, 11, 2]], 1), ([[1, 11, 2], [1, 12, 2]], 2)):
        data = ask(server, model="small", input=given).json()["data"]
        assert [entry["index"] for entry in data] == list(range(count))
        assert data[0]["embedding"] == first
    for given in ([], {}, 5, None, [[]], ["w1", 5], [1, "w1"], [[1], "w1"], [[True]], [1.5]):
        refused(ask(server, model="small", input=given), 400, "invalid_input", "input", "'input' must be")


def test_a_text_that_was_cut_says_so(server: Server, client: openai.OpenAI) -> None:
    texts = ["w1", "w1 w2 w3 w4 w5 w6"]
    answer = ask(server, model="small", input=texts)
    assert answer.headers["x-truncated"] == "1"
    assert [entry.get("truncated_from") for entry in answer.json()["data"]] == [None, 8]
    assert answer.json()["usage"]["prompt_tokens"] == 3 + 6
    assert len(client.embeddings.create(model="small", input=texts).data) == 2  # the client is not disturbed
    words = ("'input[1]' has 8 tokens, the model's limit is 6",)
    refused(ask(server, model="small", input=texts, truncate=False), 413, "input_too_large", "input[1]", *words)
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model="small", input=texts, extra_body={"truncate": False})
    assert caught.value.status_code == 413


def test_dimensions(server: Server, client: openai.OpenAI) -> None:
    whole = ask(server, model="small", input="w1").json()["data"][0]["embedding"]
    assert ask(server, model="small", input="w1", dimensions=2).json()["data"][0]["embedding"] == whole[:2]
    refused(ask(server, model="small", input="w1", dimensions=1), 400, "invalid_input", "dimensions", "it has 2, 3")
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="small", input="w1", dimensions=1)


def test_limits_are_named(server: Server) -> None:
    refused(ask(server, model="small", input=["w1"] * 101), 413, "input_too_large", "input", "101 texts", "100")
    refused(
        ask(server, model="small", input=["w1", "x" * 501]),
        413,
        "input_too_large",
        "input[1]",
        "501 characters",
        "500",
    )
    refused(ask(server, model="small", input="x" * (5 << 20)), 413, "input_too_large", "body")
    refused(ask(server, model="small", input=[9999]), 400, "invalid_input", "input", "an id that is not below 210")


def test_what_is_refused(server: Server) -> None:
    refused(ask(server, model="none", input="w1"), 404, "model_not_found", "model", "none")
    refused(ask(server, model="scale", input="w1"), 400, "invalid_input", "model", "its task is 'tensors'")
    refused(ask(server, model="small"), 400, "invalid_input", "input", "input")
    refused(ask(server, input="w1"), 400, "invalid_input", "model", "model")
    refused(
        ask(server, model="small", input="w1", encoding="x"), 400, "unsupported_parameter", "encoding", "no parameter"
    )
    refused(ask(server, model="small", input="w1", encoding_format="int8"), 400, "invalid_input", "encoding_format")
    refused(ask(server, model="small", input="w1", dimensions=0), 400, "invalid_input", "dimensions")
    refused(ask(server, model=5, input="w1"), 400, "invalid_input", "model")
    for body in (b"", b"{", b"[]", b"\xff", b'{"model": "small", "input": "\\ud800"}'):
        answer = server.client.post("/v1/embeddings", content=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["code"] == "invalid_input"
    assert server.client.get("/v1/embeddings").status_code == 405


def test_through_predict(server: Server) -> None:
    whole = ask(server, model="small", input="w1").json()["data"][0]["embedding"]
    answer = server.client.post("/predict/small", json={"text": ["w1", "w1 w2 w3 w4 w5 w6"]}).json()["results"]
    assert answer[0] == {"embedding": whole, "tokens": 3}
    assert answer[1]["truncated_from"] == 8
    sent = curl("-d", "w1", "-H", "Content-Type: text/plain", f"{server.url}/predict/small?dimensions=2")
    assert b'"tokens":3' in sent


def test_the_models_metadata_names_the_task(minilm: Server) -> None:
    models = {model["name"]: model for model in minilm.status()["models"]}
    assert models["minilm"]["task"] == models["small"]["task"] == "embed"
    assert models["scorer"]["task"] == "rerank"


def test_the_best_documents_first(server: Server) -> None:
    documents = ["w1", {"text": "w90 w90"}, "w50", "w1"]
    answer = ask(server, "/v1/rerank", model="scorer", query="w7", documents=documents)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [entry["index"] for entry in results] == [1, 2, 0, 3]
    # By hand: sigmoid((sum of the document's ids and its [SEP] - 100) / 100).
    right = [1 / (1 + np.exp(-(ids - 100) / 100)) for ids in (202, 62, 13, 13)]
    assert [entry["relevance_score"] for entry in results] == pytest.approx(right, abs=1e-6)
    assert answer.json()["usage"] == {"prompt_tokens": 5 + 6 + 5 + 5, "total_tokens": 21}
    assert "document" not in results[0]
    best = ask(
        server, "/v1/rerank", model="scorer", query="w7", documents=documents, top_n=1, return_documents=True
    ).json()["results"]
    assert best == [{**results[0], "document": {"text": "w90 w90"}}]


def test_what_reranking_refuses(server: Server) -> None:
    def rank(**body: Any) -> httpx.Response:
        return ask(server, "/v1/rerank", **{"model": "scorer", "query": "w1", "documents": ["w1"], **body})

    refused(rank(model="small"), 400, "invalid_input", "model", "its task is 'embed'")
    refused(rank(documents=[]), 400, "invalid_input", "documents", "empty")
    refused(rank(documents="w1"), 400, "invalid_input", "documents")
    refused(rank(documents=[{"title": "x"}]), 400, "unsupported_parameter", "documents[0].title")
    refused(rank(top_n=0), 400, "invalid_input", "top_n")
    refused(rank(max_chunks_per_doc=1), 400, "unsupported_parameter", "max_chunks_per_doc")
    long = " ".join(["w1"] * 20)
    refused(rank(documents=[long], truncate=False), 413, "input_too_large", "documents", "24 tokens", "12")
    assert rank(documents=[long]).json()["results"][0]["truncated_from"] == 24


def test_a_folder_is_added_as_it_is(minilm: Server, tmp_path: Path) -> None:
    import subprocess

    source = minilm.models / "minilm"
    environment = {**minilm.env, "APPLIANCE_MODELS": str(tmp_path / "models")}
    for command in (["models", "add", str(source), "--name", "mine"], ["models", "check", "mine"]):
        done = subprocess.run(
            [sys.executable, "-m", "appliance", *command], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "models" / "mine" / "tokenizer.json").exists()
