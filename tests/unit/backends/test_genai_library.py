"""Language models with weights: what the library alone gives, and guided answers. Skipped where there are none."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_genai")

import onnxruntime_genai as og

from appliance.errors import InvalidInput
from tests.support.models import at_hand
from tests.support.streams import Reader, answer, opened


def real(name: str) -> Path:
    folder = at_hand(f"llm/{name}")
    if folder is None:
        pytest.skip("APPLIANCE_TEST_MODELS does not name a folder with language models")
    return folder


def test_guided_answers() -> None:
    made = opened(real("tiny-random"))
    try:
        assert made.opened.generation is not None
        assert "guidance" in made.opened.generation.can
        # 66, 67, 68 are a, b, c in its tokenizer; whatever the weights say, three of them and then the end must come.
        said, finish = answer(made, [5, 6, 7], guidance=("regex", "[a-c]{3}"), max_tokens=10)
        assert (len(said), finish) == (3, "stop")
        assert set(said) <= {66, 67, 68}
        beside = Reader(made, [9, 8], max_tokens=100, ignore_end=True)
        for kind, data in (("regex", "((("), ("json_schema", "{bad"), ("no_such_kind", "x")):
            with pytest.raises(InvalidInput, match="cannot be guided"):
                answer(made, [5], guidance=(kind, data))
        assert len(beside.over().said) == 100
    finally:
        made.close()


def test_the_same_as_the_library_alone_also_beside_others() -> None:
    folder = real("tiny-random")
    made = opened(folder, backend_options={"streams": 16, "prompt_piece": 16})
    plain = og.Model(str(folder))

    def alone(prompt: list[int]) -> list[int]:
        params = og.GeneratorParams(plain)
        params.set_search_options(max_length=len(prompt) + 40, do_sample=False)
        generator = og.Generator(plain, params)
        generator.append_tokens(np.array(prompt, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        said = [int(i) for i in generator.get_sequence(0)[len(prompt) :]]
        return said[:-1] if said[-1] == 1 else said

    prompts = [[(n * 31 + k * k) % 280 + 2 for k in range(1 + n * 11)] for n in range(20)]
    expected = [alone(prompt) for prompt in prompts]
    assert len({tuple(e) for e in expected}) > 10
    try:
        assert [answer(made, prompt, max_tokens=40)[0] for prompt in prompts] == expected
        others = [Reader(made, prompts[n], max_tokens=200, ignore_end=True) for n in range(8)]
        assert [answer(made, prompt, max_tokens=40)[0] for prompt in prompts] == expected
        assert all(len(reader.over().said) == 200 for reader in others)
    finally:
        made.close()
