"""Tokens → text as they come: never half a character, never more held back than has to be."""

from hypothesis import given
from hypothesis import strategies as st

from appliance.pipelines.language.decoder import Decoder
from appliance.pipelines.language.tokenizer import TextTokenizer
from tests.support import speech

TOKENIZER = TextTokenizer(speech.tokenizer().to_str(), "m")


def told(ids: list[int], decoder: Decoder | None = None) -> list[str]:
    decoder = decoder or TOKENIZER.decoder()
    return [*(decoder.feed(token) for token in ids), decoder.rest()]


def test_a_character_of_several_tokens_comes_with_the_last_of_them() -> None:
    assert told(speech.ids("é🙂x")) == ["", "é", "", "", "", "🙂", "x", ""]


def test_special_tokens_are_no_text_but_those_that_are_asked_for() -> None:
    ids = [speech.BEGIN, *speech.ids("a"), *speech.ids("[TOOL_CALLS]"), *speech.ids("b"), speech.END]
    assert "".join(told(ids)) == "ab"
    assert "".join(told(ids, TOKENIZER.decoder(["[TOOL_CALLS]", "no token"]))) == "a[TOOL_CALLS]b"


def test_half_a_character_at_the_end_is_told_as_such() -> None:
    assert told(speech.ids("aé")[:-1]) == ["a", "", "\ufffd"]


def test_bytes_that_are_no_text_do_not_hold_back_what_follows() -> None:
    lone = speech.ids("é")[1]  # the second byte of two
    text = "".join(told([lone] * 500 + speech.ids("and on")))
    assert text.endswith("and on") and set(text[:-6]) == {"\ufffd"}
    decoder = TOKENIZER.decoder()
    silent = [decoder.feed(lone) == "" for _ in range(500)]
    assert max(len(run) for run in "".join(".x"[s] for s in silent).split(".")) < 10


def test_ids_that_the_tokenizer_does_not_have_are_no_text() -> None:
    assert "".join(told([*speech.ids("a"), 999_999, *speech.ids("b")])) == "ab"


def test_a_space_that_the_tokenizer_writes_between_words_only_needs_what_was_before() -> None:
    from tokenizers import Tokenizer, decoders, models

    made = Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1}))
    made.decoder = decoders.Metaspace()
    tokenizer = TextTokenizer(made.to_str(), "m")
    assert "".join(told([1, 0], tokenizer.decoder())) == "two one"
    assert "".join(told([1, 0], tokenizer.decoder(before=[0, 0]))) == " two one"


@given(st.text(max_size=40).filter(lambda text: not any(mark in text for mark in speech.SPECIAL)))
def test_any_text_comes_whole(text: str) -> None:
    assert "".join(told(speech.ids(text))) == text
