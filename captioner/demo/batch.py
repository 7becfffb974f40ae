"""Many pictures at once: files and ZIP archives in, a table and results files out."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image

from captioner.demo.handlers import DemoError, read_upload
from captioner.inference.captioner import Captioner
from captioner.inference.overlay import format_probability, picture_url
from captioner.inference.records import caption_record

MAX_PICTURES = 500
MAX_MEMBER_BYTES = 64 * 1024**2
MAX_UNPACKED_BYTES = 1024**3

_THUMBNAILS = 100  # rows with a small picture; more of them would make the page slow
_BLOCK = 1024**2


@dataclass(frozen=True)
class Item:
    """One picture of a batch, or why there is none.

    Args:
        name: What the visitor calls it; for a member of an archive, ``ARCHIVE/MEMBER``.
        image: The picture, upright in RGB.
        error: Why it could not be read.
    """

    name: str
    image: Image.Image | None
    error: str | None = None


@dataclass(frozen=True)
class Row:
    """What the table says of one picture."""

    name: str
    record: dict[str, object] | None
    error: str | None
    thumbnail: str | None


def read_items(paths: Sequence[str | Path]) -> Iterator[Item]:
    """The pictures of uploaded files, one after the other; archives are looked into.

    Nothing of an archive is written to disk: a member is unpacked into memory, read as a
    picture and forgotten, so the name that an archive gives it leads nowhere. What is unpacked is
    counted as it comes, for what an archive says of its sizes may be false.

    Args:
        paths: Uploaded files.
    """
    left = MAX_UNPACKED_BYTES
    count = 0
    for path in map(Path, paths):
        if not zipfile.is_zipfile(path):
            count += 1
            if count > MAX_PICTURES:
                yield _too_many(path.name)
                return
            yield _read(path.name, path)
            continue
        try:
            archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            yield Item(path.name, None, f"the archive cannot be read ({error})")
            continue
        with archive:
            for member in archive.infolist():
                if member.is_dir() or _is_hidden(member.filename):
                    continue
                name = f"{path.name}/{member.filename}"
                count += 1
                if count > MAX_PICTURES:
                    yield _too_many(name)
                    return
                if left <= 0:
                    yield Item(
                        name,
                        None,
                        f"what is unpacked is more than {MAX_UNPACKED_BYTES // 1024**2} MB in all; "
                        "the rest is left out",
                    )
                    return
                content, problem = _unpack(archive, member, min(left, MAX_MEMBER_BYTES))
                left -= len(content)
                yield Item(name, None, problem) if problem else _read(name, io.BytesIO(content))


def caption_items(
    captioner: Captioner,
    items: Iterator[Item],
    options: Mapping[str, Any],
    *,
    seed: int | None = None,
    batch_size: int = 4,
) -> Iterator[Row]:
    """Caption the pictures of a batch, in order; those that cannot be read say why.

    Args:
        captioner: The model.
        items: What ``read_items`` gives.
        options: Decoding options, as ``decoding_options`` gives them.
        seed: Makes sampling repeatable.
        batch_size: Pictures that are computed together.
    """
    batch: list[Item] = []
    shown = 0

    def flush() -> Iterator[Row]:
        nonlocal shown
        images = [item.image for item in batch if item.image is not None]
        results = captioner.captions(images, batch_size, seed=seed, **options)
        for item in batch:
            if item.image is None:
                yield Row(item.name, None, item.error, None)
                continue
            record = caption_record(item.name, next(results))
            shown += 1
            yield Row(item.name, record, None, _thumbnail(item.image, shown))
        batch.clear()

    for item in items:
        batch.append(item)
        if len(batch) >= batch_size:
            yield from flush()
    if batch:
        yield from flush()


def to_jsonl(rows: Sequence[Row]) -> str:
    """The captions as ``captioner caption --format jsonl`` gives them; others with their error."""
    lines = [
        json.dumps(row.record or {"image": row.name, "error": row.error}, ensure_ascii=False)
        for row in rows
    ]
    return "".join(line + "\n" for line in lines)


def to_csv(rows: Sequence[Row]) -> str:
    """A table with ``image, caption, log_prob, error``."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(("image", "caption", "log_prob", "error"))
    for row in rows:
        record = row.record or {}
        values = (row.name, record.get("caption", ""), record.get("log_prob", ""), row.error or "")
        writer.writerow([_no_formula(value) for value in values])
    return file.getvalue()


def count_items(paths: Sequence[str | Path]) -> int:
    """About how many pictures there are, for a progress bar; archives are not unpacked."""
    count = 0
    for path in paths:
        try:
            with zipfile.ZipFile(path) as archive:
                count += sum(
                    not (member.is_dir() or _is_hidden(member.filename))
                    for member in archive.infolist()
                )
        except Exception:  # no archive, or a broken one: one row either way
            count += 1
    return min(count, MAX_PICTURES)


def to_html(rows: Sequence[Row], state: str, total: int | None = None) -> str:
    """The table as it grows, with links to what there is so far.

    Args:
        rows: What is done.
        state: How far that is, in words.
        total: About how many there will be; None when it is over.
    """
    failed = sum(row.error is not None for row in rows)
    body = "".join(map(_html_row, rows))
    links = " ".join(
        f'<a class="button" download="captions.{end}" href="data:{kind};base64,'
        f'{base64.b64encode(text.encode()).decode("ascii")}">{end.upper()}</a>'
        for end, kind, text in (
            ("csv", "text/csv", to_csv(rows)),
            ("jsonl", "application/jsonl", to_jsonl(rows)),
        )
    )
    bar = (
        "" if total is None else f'<progress value="{len(rows)}" max="{max(1, total)}"></progress>'
    )
    problems = f", {failed} could not be read" if failed else ""
    return (
        f'<p class="state" role="status"><span>{html.escape(state)}{problems}</span>{bar} '
        f'<span class="links">{links}</span></p>'
        '<div class="scroll"><table><thead><tr><th></th><th>Picture</th><th>Caption</th>'
        f'<th title="mean probability of a word">Per word</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _html_row(row: Row) -> str:
    picture = f'<img alt="" src="{row.thumbnail}">' if row.thumbnail else ""
    name = html.escape(row.name)
    if row.record is None:
        why = html.escape(row.error or "")
        return f'<tr class="bad"><td></td><td>{name}</td><td colspan="2">{why}</td></tr>'
    values = row.record["word_log_probs"]
    assert isinstance(values, list)
    mean = format_probability(sum(values) / len(values)) if values else ""
    caption = html.escape(str(row.record["caption"]))
    return f"<tr><td>{picture}</td><td>{name}</td><td>{caption}</td><td>{mean}</td></tr>"


def _read(name: str, source: Path | io.BytesIO) -> Item:
    try:
        return Item(name, read_upload(source))
    except DemoError as error:
        return Item(name, None, str(error))


def _unpack(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int
) -> tuple[bytes, str | None]:
    """The content of a member, no more than ``limit`` bytes of it, and what is wrong with it."""
    if stat.S_ISLNK(member.external_attr >> 16):
        return b"", "is a link, not a picture"
    content = bytearray()
    try:
        with archive.open(member) as file:
            while block := file.read(_BLOCK):
                content += block
                if len(content) > limit:
                    return bytes(content), f"unpacks to more than {limit / 1024**2:.0f} MB"
    except Exception as error:  # archives raise whatever a broken one makes them raise
        reason = " ".join(str(error).split()) or type(error).__name__
        return bytes(content), f"cannot be unpacked ({reason})"
    return bytes(content), None


def _is_hidden(name: str) -> bool:
    """Names that start with a dot, and what macOS adds to archives."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return any(
        part == "__MACOSX" or (part.startswith(".") and part not in (".", "..")) for part in parts
    )


def _too_many(name: str) -> Item:
    return Item(
        name, None, f"more than {MAX_PICTURES} pictures; this one and the rest are left out"
    )


def _thumbnail(image: Image.Image, number: int) -> str | None:
    if number > _THUMBNAILS:
        return None
    small = image.copy()
    small.thumbnail((96, 96))
    return picture_url(small, quality=70)


def _no_formula(value: object) -> object:
    """A value that a spreadsheet takes for text: a name may begin with what begins a formula."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
