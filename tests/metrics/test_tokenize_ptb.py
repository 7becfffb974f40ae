"""The PTB tokenizer against the package's Java tool: a golden file, and the tool itself."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioner.metrics import ptb_tokenize, ptb_tokenize_captions, ptb_tokenize_pair
from captioner.metrics import tokenize_ptb as module

FOLDER = Path(__file__).parent
GOLDEN = json.loads((FOLDER / "golden" / "tokens.json").read_text("utf-8"))
LINE_BREAKS = [
    "\n",
    "\r",
    "\r\n",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1d",
    "\x1e",
    "\x85",
    "\u2028",
    "\u2029",
]


def differences(pairs: list[tuple[str, list[str]]]) -> list[tuple[str, list[str], list[str]]]:
    return [
        (caption, expected, got)
        for caption, expected in pairs
        if (got := ptb_tokenize(caption)) != expected
    ]


def test_made_captions_give_the_golden_tokens() -> None:
    assert len(GOLDEN["captions"]) > 600
    assert differences(GOLDEN["captions"]) == []


def test_kept_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_PIECES", 2)
    monkeypatch.setattr(module, "_kept_pieces", {})
    assert differences(GOLDEN["captions"]) == []
    assert len(module._kept_pieces) <= 2


@pytest.mark.parametrize("line_break", LINE_BREAKS)
def test_every_line_break_counts_as_a_space(line_break: str) -> None:
    caption = f"1{line_break}1/2 dogs{line_break}{line_break}run.{line_break}"
    assert ptb_tokenize(caption) == ["1\u00a01/2", "dogs", "run"]


def test_initials_and_numbers_hang_on_the_next_word() -> None:
    assert ptb_tokenize("J. Smith and bus no. 5") == ["j.", "smith", "and", "bus", "no.", "5"]
    assert " ".join(ptb_tokenize("Plan B. The bus says no. Yes")) == "plan b the bus says no yes"
    assert ptb_tokenize("12th Ave S.") == ["12th", "ave", "s"]


@given(st.text(max_size=40))
def test_any_text_gives_clean_tokens(caption: str) -> None:
    for token in ptb_tokenize(caption):
        assert token
        assert token not in module.PUNCTUATION
        assert not any(char in " \n\r\t\x0b\x0c\x85\u2028\u2029" for char in token)


def test_captions_and_pairs_are_joined_by_single_spaces() -> None:
    assert ptb_tokenize_captions(["A dog.", ""]) == ["a dog", ""]
    assert ptb_tokenize_pair({1: "A  dog!"}, {1: ["It's", "Two, three"]}) == (
        {1: "a dog"},
        {1: ["it 's", "two three"]},
    )


@pytest.fixture(scope="session")
def package() -> object:
    """``package_tokens`` of the script that made the golden file."""
    pytest.importorskip("pycocoevalcap", reason="needs the extra metrics")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    sys.path.insert(0, str(FOLDER / "golden"))
    try:
        import make_tokens
    finally:
        sys.path.pop(0)
    return make_tokens


@pytest.mark.java
def test_thousands_of_made_captions_equal_the_package(
    package: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "")  # restored after the test; the script sets it
    # A caption may not hold a line break here: the package would move all later captions.
    captions = package.made_captions(4000, seed=20)  # type: ignore[attr-defined]
    expected = package.package_tokens(captions)  # type: ignore[attr-defined]
    assert differences(list(zip(captions, expected, strict=True))) == []


@pytest.mark.java
@pytest.mark.parametrize("name", ["coco", "flickr8k"])
def test_data_sets_equal_the_package(
    package: object, shared_data: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All captions in the order of the file, as the package reads them: nothing set apart."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dfile.encoding=UTF-8")
    if name == "coco":
        path = shared_data / "coco" / "captions_val2017.json"
        rows = json.loads(path.read_text("utf-8"))["annotations"]
        captions = [row["caption"] for row in rows]
    else:
        path = shared_data / "flickr8k" / "Flickr8k.token.txt"
        captions = [line.split("\t")[1] for line in path.read_text("utf-8").splitlines()]
    captions = [" ".join(caption.splitlines()) for caption in captions]
    tokenised = PTBTokenizer().tokenize({0: [{"caption": caption} for caption in captions]})[0]
    assert len(tokenised) == len(captions) == {"coco": 25_014, "flickr8k": 40_460}[name]
    expected = [[token for token in row.split(" ") if token] for row in tokenised]
    assert differences(list(zip(captions, expected, strict=True))) == []
