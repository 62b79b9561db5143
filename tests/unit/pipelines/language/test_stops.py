"""Stop strings, whatever the pieces."""

from hypothesis import given
from hypothesis import strategies as st

from appliance.pipelines.language.stops import StopStrings, overlap


def read(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    reader = StopStrings(stops)
    told = "".join(reader.feed(piece) for piece in pieces)
    return (told if reader.hit else told + reader.rest()), reader.hit


def test_nothing_of_a_stop_string_is_told_and_nothing_behind_it() -> None:
    assert read(["END"], ["a E", "N", "D b"]) == ("a ", True)
    assert read(["END"], ["a EN"]) == ("a EN", False)
    assert read([], ["a", "b"]) == ("ab", False)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    reader = StopStrings(["\n\nUser:", "###"])
    assert reader.feed("hello #") == "hello "
    assert reader.feed("1 \n") == "#1 "
    assert reader.feed("\n") == ""
    assert reader.feed("U") == ""
    assert reader.feed("p") == "\n\nUp"
    assert (reader.rest(), reader.hit) == ("", False)


def test_after_a_hit_nothing_is_told() -> None:
    reader = StopStrings(["x"])
    assert [reader.feed("axb"), reader.feed("c"), reader.rest()] == ["a", "", ""]


def test_overlap_is_the_longest_beginning_at_the_end() -> None:
    assert [overlap(text, "aab") for text in ("", "b", "a", "aa", "aaa", "xaab")] == [0, 0, 1, 2, 2, 0]


def reference(stops: list[str], text: str) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=6), max_size=8),
)
def test_it_does_not_matter_in_which_pieces_the_text_comes(stops: list[str], pieces: list[str]) -> None:
    assert read(stops, pieces) == reference(stops, "".join(pieces))
