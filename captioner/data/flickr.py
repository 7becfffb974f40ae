"""Flickr8k as its authors publish it: a token file and a list of pictures for each split."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.data.records import clean_captions, read_lines
from captioner.types import CaptionRecord, Split

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)

_TOKEN_LINE = re.compile(r"(?P<name>[^\t]+?)\s*#\s*(?P<number>\d+)\s*\t(?P<caption>.*)")


@dataclass(frozen=True)
class Flickr8kTokens:
    """Flickr8k's ``Flickr8k.token.txt`` with its split lists; Flickr30k's has the same form.

    Names that no list holds are left out and logged: 91 pictures of Flickr8k, and one name of
    the token file that has no picture. A listed picture that is not on disk stays, so that
    ``captioner data check`` can name it.

    Args:
        token_file: Lines of ``name.jpg#0<TAB>caption``.
        image_dir: Folder of pictures.
        train_list: ``Flickr_8k.trainImages.txt``, a name a line.
        val_list: ``Flickr_8k.devImages.txt``.
        test_list: ``Flickr_8k.testImages.txt``.

    References:
        Hodosh, Young and Hockenmaier 2013, Framing Image Description as a Ranking Task.
    """

    token_file: str | Path
    image_dir: str | Path
    train_list: str | Path
    val_list: str | Path
    test_list: str | Path

    def records(self) -> list[CaptionRecord]:
        """Pictures of the lists, in their order: train, val, test.

        Raises:
            FileNotFoundError: If a file is missing.
            ValueError: If a line has another form or a picture is in two lists.
        """
        captions = read_token_file(Path(self.token_file))
        splits: dict[str, Split] = {}
        lists: tuple[tuple[Split, str | Path], ...] = (
            ("train", self.train_list),
            ("val", self.val_list),
            ("test", self.test_list),
        )
        for split, file in lists:
            for number, name in read_split_list(Path(file)):
                if name in splits:
                    raise ValueError(
                        f"{file}, line {number}: picture {name!r} is already in "
                        f"{splits[name]}; keep it in one split, once"
                    )
                splits[name] = split
        folder = Path(self.image_dir)
        _log_left_out(captions.keys() - splits.keys(), folder)
        return [
            CaptionRecord(name, folder / name, clean_captions(captions.get(name, ())), split)
            for name, split in splits.items()
        ]


def is_token_line(line: str) -> bool:
    """Whether a line has the form ``name#number<TAB>caption``."""
    return _TOKEN_LINE.fullmatch(line) is not None


def read_token_file(file: Path) -> dict[str, list[str]]:
    """Captions of each name of a token file, both in the order of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line has another form.
    """
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            continue
        match = _TOKEN_LINE.fullmatch(line)
        if match is None:
            raise ValueError(
                f"{file}, line {number}: expected `name.jpg#0<TAB>caption`, got {line[:80]!r}"
            )
        captions.setdefault(match["name"].strip(), []).append(match["caption"].strip())
    if not captions:
        raise ValueError(f"{file} is empty; expected lines of `name.jpg#0<TAB>caption`")
    return captions


def read_split_list(file: Path) -> Iterable[tuple[int, str]]:
    """Line number and name of each picture of a split list."""
    for number, line in enumerate(read_lines(file), start=1):
        if name := line.strip():
            yield number, name


def _log_left_out(names: Iterable[str], folder: Path) -> None:
    """Say which names of the token file are not used."""
    left_out = sorted(names)
    if not left_out:
        return
    logger.info("left out %d names of the token file that are in no split list", len(left_out))
    missing = [name for name in left_out if not (folder / name).is_file()]
    if missing and folder.is_dir():
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        logger.info("%d of them have no picture in %s: %s", len(missing), folder, shown)
