"""A folder of one's own: a table that gives every picture its captions."""

from __future__ import annotations

import json
import logging
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from captioner.data.records import (
    clean_captions,
    draw_splits,
    expect_mapping,
    parse_split,
    read_lines,
)
from captioner.types import CaptionRecord, Split

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_DELIMITERS = ",;\t"
# A caption that opens a quotation mark may go on over so many lines.
_MAX_CAPTION_LINES = 100


class TableRow(NamedTuple):
    """One line of a table.

    Args:
        line: Its number, from 1.
        image: The picture as the table names it.
        captions: The captions on the line.
        split: The split's name as written; None where the table has none.
    """

    line: int
    image: str
    captions: tuple[str, ...]
    split: str | None


@dataclass(frozen=True)
class CaptionTable:
    """Own pictures, or Flickr8k as Kaggle spreads it (``captions.txt``).

    The table is UTF-8, of one of two kinds, told apart by the content:

    - CSV with the header ``image,caption`` or ``image,caption,split`` and a row for every
      caption; a picture may have any number of rows. Commas, semicolons and tabs separate.
      A caption with commas or quotation marks may be quoted or not.
    - JSON lines, ``{"image": "a.jpg", "captions": ["A dog.", "One dog."], "split": "train"}``,
      the split being optional; ``"caption": "A dog."`` serves for one caption.

    The id of a picture is its name in the table, with sub-folders (``birds/a.jpg``). Splits are
    train, val (or valid, validation, dev) and test. Where the table has none, pictures are
    split at random, the same whatever the order of the rows.

    Args:
        table: The file.
        image_dir: Folder that the names start from; the folder of the table by default.
        val_fraction: Part of the pictures for validation where the table has no splits.
        test_fraction: Part of the pictures for test where the table has no splits.
        seed: Another seed splits otherwise.
    """

    table: str | Path
    image_dir: str | Path | None = None
    val_fraction: float = 0.1
    test_fraction: float = 0.1
    seed: int = 0

    def records(self) -> list[CaptionRecord]:
        """Pictures in the order in which the table first names them.

        Raises:
            FileNotFoundError: If there is no such table.
            ValueError: If a line cannot be read or a picture is in two splits; the message
                names the line.
        """
        file = Path(self.table)
        folder = file.parent if self.image_dir is None else Path(self.image_dir)
        captions: dict[str, list[str]] = {}
        splits: dict[str, Split] = {}
        split_lines: dict[str, int] = {}
        without_split: int | None = None
        for row in read_table(file):
            where = f"{file}, line {row.line}"
            image_id = _picture_id(row.image, folder, where)
            captions.setdefault(image_id, []).extend(row.captions)
            if row.split is None:
                without_split = without_split or row.line
                continue
            split = parse_split(row.split, where)
            first = splits.setdefault(image_id, split)
            first_line = split_lines.setdefault(image_id, row.line)
            if first != split:
                raise ValueError(
                    f"{where}: picture {image_id!r} is in {split}, but in {first} on line "
                    f"{first_line}; keep it in one split"
                )
        if not captions:
            raise ValueError(f"{file} names no picture; add lines below the header")
        if not splits:
            splits = draw_splits(captions, self.val_fraction, self.test_fraction, self.seed)
        elif without_split is not None:
            raise ValueError(
                f"{file}, line {without_split}: no split, though other lines have one; give "
                "every line a split, or none"
            )
        return [
            CaptionRecord(image_id, folder / image_id, clean_captions(texts), splits[image_id])
            for image_id, texts in captions.items()
        ]


def has_splits(file: Path) -> bool:
    """Whether a table names the splits of its pictures itself."""
    return any(row.split is not None for row in read_table(file))


def read_table(file: Path) -> Iterator[TableRow]:
    """The lines of a CSV or JSON-lines table; see ``CaptionTable`` for the form.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line cannot be read; the message names it.
    """
    lines = read_lines(file)
    start = next((i for i, line in enumerate(lines) if line.strip()), None)
    if start is None:
        raise ValueError(f"{file} is empty; its first line must be `image,caption`")
    if lines[start].lstrip().startswith("{"):
        return _read_json_lines(lines, start, file)
    if lines[start].lstrip().startswith("["):
        raise ValueError(
            f"{file} is a JSON list; write one JSON object a line, without brackets and commas "
            "around them"
        )
    if re.fullmatch(r"sep=.?", lines[start].strip()):  # a note that spreadsheets leave
        start += 1
    return _read_csv(lines, start, file)


def find_header(line: str) -> tuple[str, list[str]] | None:
    """Separator and column names if a line is the header of a CSV table."""
    for delimiter in _DELIMITERS:
        columns = [name.strip().strip('"').strip().lower() for name in line.split(delimiter)]
        if "image" in columns and "caption" in columns:
            return delimiter, columns
    return None


def _read_json_lines(lines: list[str], start: int, file: Path) -> Iterator[TableRow]:
    for number, line in enumerate(lines[start:], start=start + 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{where}: not JSON ({error.msg}, column {error.colno}); write one object a line"
            ) from None
        entry = expect_mapping(value, where)
        image = entry.get("image")
        if not isinstance(image, str):
            raise ValueError(
                f'{where}: "image" must be the name of a picture, got {image!r}; expected '
                '{"image": "a.jpg", "captions": ["A dog."]}'
            )
        captions = [entry["caption"]] if "caption" in entry else entry.get("captions")
        if not isinstance(captions, list) or not all(isinstance(c, str) for c in captions):
            raise ValueError(
                f'{where}: "captions" must be a list of texts, got {captions!r}; expected '
                '{"image": "a.jpg", "captions": ["A dog."]}'
            )
        split = entry.get("split")
        if split is not None and not isinstance(split, str):
            raise ValueError(f"{where}: split must be train, val or test, got {split!r}")
        yield TableRow(number, image, tuple(captions), split)


def _read_csv(lines: list[str], start: int, file: Path) -> Iterator[TableRow]:
    header = find_header(lines[start]) if start < len(lines) else None
    if header is None:
        text = lines[start] if start < len(lines) else ""
        there = {name.strip().strip('"').lower() for name in re.split(r"[,;\t]", text)}
        missing = " and ".join(name for name in ("image", "caption") if name not in there)
        raise ValueError(
            f"{file}, line {start + 1}: no column {missing or 'names'}; the first line must be "
            f"`image,caption` or `image,caption,split`, got {text[:80]!r}"
        )
    delimiter, columns = header
    repeated = {name for name in columns if name and columns.count(name) > 1}
    if repeated:
        raise ValueError(f"{file}, line {start + 1}: column {sorted(repeated)} is named twice")
    parser = _RowParser(delimiter, columns)
    i = start + 1
    while i < len(lines):
        number = i + 1
        if not lines[i].strip():
            i += 1
            continue
        fields, num_lines = parser.parse(lines, i)
        i += num_lines
        if fields is None:
            names = delimiter.join(columns)
            raise ValueError(
                f"{file}, line {number}: expected {len(columns)} columns `{names}`, "
                f"got {lines[number - 1][:80]!r}"
            )
        row = dict(zip(columns, fields, strict=True))
        yield TableRow(number, row["image"].strip(), (row["caption"],), row.get("split"))


class _RowParser:
    """Reads rows of a CSV table whose captions may be quoted, or not though they should be.

    The csv module takes an unquoted comma for the end of a caption, and an unquoted quotation
    mark for the start of text that runs on to the next mark, many rows later. Here all other
    columns are taken off first, from both ends of the row; what is left is the caption.
    """

    def __init__(self, delimiter: str, columns: list[str]) -> None:
        d = re.escape(delimiter)
        field = rf'(?:"((?:[^"]|"")*+)"|([^{d}"\n]*))'
        self._delimiter = delimiter
        self._num_before = columns.index("caption")
        self._num_after = len(columns) - self._num_before - 1
        self._before = re.compile(rf" *{field} *{d}")
        self._quoted = re.compile(r' *"((?:[^"]|"")*+)" *')
        self._after = re.compile(rf"{d} *{field} *")
        # How a next row may begin, so that an open quotation mark ends before it.
        image_first = columns.index("image") == 0
        self._row_start = re.compile(rf'"?[^"{d}]+\.\w{{2,5}}"?{d}') if image_first else None

    def parse(self, lines: list[str], start: int) -> tuple[list[str] | None, int]:
        """Fields of the row that begins at a line (None if too few), and its lines."""
        fields, is_open = self._split(lines[start])
        if is_open:
            text = lines[start]
            for i in range(start + 1, min(start + _MAX_CAPTION_LINES, len(lines))):
                if self._row_start is not None and self._row_start.match(lines[i]):
                    break
                text = f"{text}\n{lines[i]}"
                longer, is_open = self._split(text, quoted_only=True)
                if longer is not None:
                    return longer, i - start + 1
                if not is_open:
                    break
        return fields, 1

    def _split(self, text: str, quoted_only: bool = False) -> tuple[list[str] | None, bool]:
        """Fields of a row, and whether its caption opens a quotation mark and leaves it open."""
        position = 0
        before: list[str] = []
        for _ in range(self._num_before):
            match = self._before.match(text, position)
            if match is None:
                return None, False
            before.append(_unquote(match))
            position = match.end()
        is_open = False
        if text[position:].lstrip(" ").startswith('"'):
            match = self._quoted.match(text, position)
            if match is None:
                is_open = True
            else:
                after = self._split_after(text, match.end())
                if after is not None:
                    return [*before, match[1].replace('""', '"'), *after], False
        if quoted_only:
            return None, is_open
        rest = text[position:].rsplit(self._delimiter, self._num_after)
        if len(rest) <= self._num_after:
            return None, is_open
        caption, *tail = rest
        return [*before, caption, *(value.strip().strip('"') for value in tail)], is_open

    def _split_after(self, text: str, position: int) -> list[str] | None:
        """The columns behind a quoted caption if they fill the row to its end."""
        after = []
        for _ in range(self._num_after):
            match = self._after.match(text, position)
            if match is None:
                return None
            after.append(_unquote(match))
            position = match.end()
        return after if position == len(text) else None


def _unquote(field: re.Match[str]) -> str:
    quoted: str | None = field[1]
    return quoted.replace('""', '"') if quoted is not None else field[2].strip()


def _picture_id(name: str, folder: Path, where: str) -> str:
    """The name of a picture from its folder, with forward slashes whatever the system."""
    text = name.strip().replace("\\", "/")
    if not text:
        raise ValueError(f"{where}: no picture is named; fill the column image")
    if Path(text).is_absolute():
        path, base = Path(text), folder.absolute()
        text = path.relative_to(base).as_posix() if path.is_relative_to(base) else text
    return posixpath.normpath(text)
