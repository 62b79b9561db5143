"""An answer's pieces, its count and its end."""

from appliance.pipelines.base import Told
from appliance.pipelines.language.answer import Answer, Piece
from appliance.pipelines.language.tokenizer import TextTokenizer
from appliance.pipelines.language.tools import ToolCall, reader
from tests.support import speech

TOKENIZER = TextTokenizer(speech.tokenizer().to_str(), "m")
CALL = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'


def read(answer: Answer, text: str, finish: str = "stop", size: int = 1) -> list[Piece]:
    ids = speech.ids(text)
    pieces = []
    for at in range(0, len(ids), size):
        pieces.append(answer.feed(Told(ids[at : at + size], [-0.5] * len(ids[at : at + size]))))
        if pieces[-1].finish:
            return pieces
    pieces.append(answer.feed(Told([], [], finish)))  # type: ignore[arg-type]
    return pieces


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_every_token_counts_and_the_end_is_told_once() -> None:
    answer = Answer(TOKENIZER.decoder())
    pieces = read(answer, "é!", "length")
    assert [p.text for p in pieces] == ["", "é", "!", ""]
    assert [p.finish for p in pieces] == [None, None, None, "length"]
    assert answer.count == 3
    assert [[t.id for t in p.tokens] for p in pieces] == [[i] for i in speech.ids("é!")] + [[]]


def test_a_stop_string_ends_it_in_the_middle_of_a_part() -> None:
    answer = Answer(TOKENIZER.decoder(), ["STOP"])
    pieces = read(answer, "abSTOPcd", size=8)
    assert (text_of(pieces), pieces[-1].finish, answer.count) == ("ab", "stop", 6)


def test_what_was_held_back_is_told_at_the_end() -> None:
    pieces = read(Answer(TOKENIZER.decoder(), ["STOP"]), "abST", "length")
    assert (text_of(pieces), pieces[-1].finish) == ("abST", "length")


def test_calls_change_the_end() -> None:
    answer = Answer(TOKENIZER.decoder(), (), reader("hermes", ["time"]))
    pieces = read(answer, f"Well. {CALL}{CALL}")
    assert text_of(pieces) == "Well. "
    assert [c for p in pieces for c in p.calls] == [ToolCall("time", "{}")] * 2
    assert pieces[-1].finish == "tool_calls"


def test_one_call_only_ends_the_answer() -> None:
    for kind, text in (("hermes", CALL * 2), ("llama", '{"name": "time"};{"name": "time"}')):
        answer = Answer(TOKENIZER.decoder(), (), reader(kind, ["time"]), one_call=True)  # type: ignore[arg-type]
        pieces = read(answer, text)
        assert [c for p in pieces for c in p.calls] == [ToolCall("time", "{}")]
        assert pieces[-1].finish == "tool_calls"
    assert answer.count == len(text)  # the second kind is known at the end only
