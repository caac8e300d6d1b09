from __future__ import annotations

import re
from html import unescape

import pytest

from querywright.optimize.artifacts.text_diff import WORDS
from querywright.optimize.study.prompts_html import difference, prompts_html

EVIL = "</script><script>alert(1)</script> <img src=x onerror=alert(2)> & 'quoted'"


def sides(html):
    """What a difference says was there before and is there after."""
    before = re.sub(r"<ins>.*?</ins>", "", html, flags=re.DOTALL)
    after = re.sub(r"<del>.*?</del>", "", html, flags=re.DOTALL)
    return tuple(unescape(re.sub(r"</?(?:ins|del)>", "", one)) for one in (before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Write a passage.", "Write a short passage."),
        ("", "Write."),
        ("Write.", ""),
        ("Write one line.\nThen stop.", "Write one line.\n\nThen go on, and on."),
        (f"Say {EVIL} now.", f"Say {EVIL} later."),
        ("Answer as it is asked.", EVIL),
    ],
)
def test_both_texts_can_be_read_from_the_difference(before, after):
    html = difference(before, after)
    old, new = sides(html)
    assert old.strip() == before
    assert new.strip() == after
    assert set(re.findall(r"<[^>]*>", html)) <= {"<ins>", "</ins>", "<del>", "</del>"}


def test_a_word_that_changed_is_all_that_is_marked():
    assert difference("Write a long passage.", "Write a short passage.") == (
        "Write a <del>long</del><ins>short</ins> passage."
    )


def test_a_prompt_written_anew_stands_whole():
    html = difference("Alpha beta gamma.", "Nothing else here is like it at all")
    assert html == "<del>Alpha beta gamma.</del>\n<ins>Nothing else here is like it at all</ins>"


def test_long_prompts_are_told_apart_by_their_lines():
    lines = [f"Line {n} has some words." for n in range(WORDS)]
    html = difference("\n".join(lines), "\n".join([*lines[:7], "One more.", *lines[7:]]))
    assert re.findall(r"<ins>.*?</ins>", html, flags=re.DOTALL) == ["<ins>One more.\n</ins>"]
    assert "<del>" not in html


def test_the_recommended_variant_comes_first_and_open():
    change = {"before": "a", "after": "a", "demos_before": 0, "demos_after": 1, "demos": [{EVIL: [EVIL, 1]}]}
    html = prompts_html({"one": {"p": change}, EVIL: {EVIL: change}, "two": {}}, "two")
    assert re.findall(r"<summary>(\w+)", html)[0] == "two"
    assert html.count(" open>") == 1
    assert "unchanged" in html
    assert "<script" not in html
    assert "<img" not in html
    assert prompts_html({"x": {"p": {}}}, None).count("<details") == 1
