"""Whole characters, no stop strings, nothing late."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from tidewheel.engine.text import TextStream


def stream(pieces: Sequence[bytes], stops: Sequence[str] = (), *, min_tokens: int = 0) -> tuple[list[str], bool]:
    """What was shown after each piece, then what the end added; and whether a stop string ended it."""
    text = TextStream(pieces.__getitem__, stops=stops, min_tokens=min_tokens)
    shown = []
    for index in range(len(pieces)):
        piece, stopped = text.feed(index)
        shown.append(piece)
        if stopped:
            return shown, True
    return [*shown, text.finish()], False


def test_a_stop_string_in_pieces_is_never_shown() -> None:
    """vllm#3574, sglang#11462."""
    shown, stopped = stream([b"DEF", b"G", b"HI", b"J"], ["DEFGHIJ"])
    assert stopped
    assert "".join(shown) == ""


def test_what_follows_a_stop_string_is_dropped() -> None:
    """vmlx-swift#109."""
    assert stream([b"ab", b"STOPcd", b"ef"], ["STOP"]) == (["ab", ""], True)


def test_unrelated_text_is_not_delayed() -> None:
    """smg#2203."""
    shown, _ = stream([b"one ", b"two ", b"three"], ["a very long stop string"])
    assert shown == ["one ", "two ", "three", ""]


def test_a_false_start_is_shown_as_soon_as_it_is_one() -> None:
    shown, stopped = stream([b"x ST", b"ART", b"."], ["STOP"])
    assert shown == ["x ", "START", ".", ""]
    assert not stopped


def test_a_held_start_is_flushed_at_the_end() -> None:
    assert stream([b"ab", b"ST"], ["STOP"]) == (["ab", "", "ST"], False)


@pytest.mark.parametrize(
    ("stops", "expected"),
    [(["cd", "bcde"], "ab"), (["bcd", "cd"], "a"), (["cd", "bcd"], "ab"), (["x", "ab"], "")],
    ids=["earliest end wins", "tie: first named", "tie: first named, other order", "only one occurs"],
)
def test_the_match_that_completes_first_wins(stops: list[str], expected: str) -> None:
    shown, stopped = stream([b"a", b"b", b"c", b"d", b"e"], stops)
    assert ("".join(shown), stopped) == (expected, True)


def test_every_split_of_a_text_stops_at_the_same_place() -> None:
    """FastChat#3848."""
    text, stops = "hello STOstop STOP more STOP", ["STOP", "xyz"]
    rng = random.Random(1)
    for _ in range(300):
        cuts = sorted(rng.sample(range(1, len(text)), rng.randint(0, 10)))
        pieces = [text[a:b].encode() for a, b in itertools.pairwise([0, *cuts, len(text)])]
        shown, stopped = stream(pieces, stops)
        assert ("".join(shown), stopped) == ("hello STOstop ", True)


def test_a_stop_string_is_not_matched_across_the_prompt() -> None:
    shown, stopped = stream([b"OP and on"], ["STOP"])
    assert ("".join(shown), stopped) == ("OP and on", False)


def test_a_character_of_four_tokens_comes_whole() -> None:
    """vllm-mlx#109."""
    shown, _ = stream([bytes([byte]) for byte in "🌊".encode()])
    assert shown == ["", "", "", "🌊", ""]


def test_an_incomplete_character_becomes_a_replacement_at_the_end_only() -> None:
    """mlx-vlm#1771."""
    shown, _ = stream([b"a", b"\xf0\x9f"])
    assert shown == ["a", "", "\ufffd"]


def test_random_bytes_come_out_as_the_whole_decoded_at_once() -> None:
    rng = random.Random(2)
    for _ in range(200):
        data = bytes(rng.choice(b"a\xc3\xa9\xf0\x9f\x8c\x8a\xff") for _ in range(rng.randint(1, 20)))
        shown, _ = stream([bytes([byte]) for byte in data])
        assert "".join(shown) == data.decode("utf-8", "replace")


def test_stop_strings_do_not_count_before_the_minimum() -> None:
    shown, stopped = stream([b"STOP", b"a", b"STOP"], ["STOP"], min_tokens=2)
    assert ("".join(shown), stopped) == ("STOPa", True)
