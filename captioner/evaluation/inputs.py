"""Captions and references from files, matched by id, with everything that is odd about them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioner.data.records import read_text
from captioner.data.sources import load_annotations

EXAMPLES = 5
"""How many pictures are named for each kind of problem."""

_COCO_NAME = re.compile(r"(?:COCO_(?:train|val|test)20\d\d_)?(\d{12})\.jpe?g", re.IGNORECASE)

# What models of many projects put around or into captions and do not always take out again.
_SPECIAL = re.compile(
    r"<\s*/?\s*(?:unk|unknown|eos|bos|sos|pad|start|end|s|mask|cls|sep)\s*/?\s*>"
    r"|\[(?:unk|cls|sep|pad|mask|bos|eos)\]"
    r"|<\|[a-z_]+\|>"
    r"|\b(?:startseq|endseq)\b"
    r"|(?<!\w)UNK(?!\w)",
    re.IGNORECASE,
)

_FORMS = (
    'COCO results [{"image_id": 1, "caption": "..."}], {"id": "caption"}, or the JSON lines of '
    "`captioner caption --format jsonl`"
)


@dataclass(frozen=True)
class Entry:
    """One caption of a results file.

    Args:
        image_id: Id of the picture as text, or the path that the file names.
        caption: What the file says; None where it is no text.
        where: Place in the file.
    """

    image_id: str
    caption: str | None
    where: str


@dataclass(frozen=True)
class Problem:
    """Something about the inputs that a reader of the scores has to know.

    Args:
        kind: ``missing``, ``contradicting``, ``not_text``, ``unknown``, ``duplicate``, ``empty``,
            ``special_tokens`` or ``in_training``.
        message: One sentence with the count.
        count: How many pictures or captions it is about.
        examples: The first of them.
        fatal: Whether nothing may be scored because of it.
    """

    kind: str
    message: str
    count: int
    examples: tuple[str, ...]
    fatal: bool = False

    def to_text(self) -> str:
        """The sentence and the examples in one line."""
        more = ", ..." if self.count > len(self.examples) else ""
        return f"{self.message}: {', '.join(self.examples)}{more}"

    def to_dict(self) -> dict[str, object]:
        """Count and examples as JSON values."""
        return {"count": self.count, "examples": list(self.examples), "message": self.message}


class InputError(Exception):
    """Files that can be read but must not be scored; says all that is wrong, a line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Inputs:
    """What is to be scored.

    Args:
        hypotheses: Raw caption of each picture that is scored, by its id as text, in the order
            of the annotations.
        references: Raw reference captions of every picture of the annotations, also of those
            that have no caption.
        problems: What is odd, worst first; none of it fatal.
        results: Name of the results file.
        annotations: Name of the annotations file.
        split: Part of the annotations, if one was chosen.
    """

    hypotheses: dict[str, str]
    references: dict[str, list[str]]
    problems: tuple[Problem, ...]
    results: str = "results"
    annotations: str = "annotations"
    split: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every picture of the annotations has its caption."""
        return len(self.hypotheses) == len(self.references)

    @property
    def scored_references(self) -> dict[str, list[str]]:
        """References of the pictures that are scored."""
        return {key: self.references[key] for key in self.hypotheses}


@dataclass
class _Sorting:
    captions: dict[str, Entry] = field(default_factory=dict)
    unknown: dict[str, Entry] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    contradicting: list[str] = field(default_factory=list)
    not_text: list[str] = field(default_factory=list)


def load_inputs(
    results: str | Path,
    annotations: str | Path,
    *,
    split: str | None = None,
    allow_missing: bool = False,
) -> Inputs:
    """Read a results file and annotations and match them by id.

    Ids are compared as text. An id that the annotations do not hold is tried as a path (the file
    name, or as many folders of it as the annotations name) and as the file name of a COCO
    picture.

    Args:
        results: Captions of a model.
        annotations: What people wrote, in any form that trains.
        split: Part of the annotations.
        allow_missing: Score the pictures that have a caption, though others have none.

    Raises:
        FileNotFoundError: If a file is not there.
        ValueError: If a file is of no known kind.
        InputError: If captions are missing or contradict each other; names them.
    """
    references = load_references(annotations, split)
    return match_inputs(
        read_results(results),
        references,
        allow_missing=allow_missing,
        results=Path(results).name,
        annotations=Path(annotations).name,
        split=split,
    )


def load_references(annotations: str | Path, split: str | None = None) -> dict[str, list[str]]:
    """Reference captions by id as text; see ``load_annotations`` for the forms."""
    loaded = load_annotations(annotations, split)
    references = {str(key): list(captions) for key, captions in loaded.items()}
    if len(references) != len(loaded):
        raise ValueError(f"{annotations}: ids that differ as numbers and as text are equal as text")
    return references


def match_inputs(
    entries: Iterable[Entry],
    references: Mapping[str, list[str]],
    *,
    allow_missing: bool = False,
    results: str = "results",
    annotations: str = "annotations",
    split: str | None = None,
) -> Inputs:
    """Match captions with references and name everything that is odd; see ``load_inputs``."""
    sorting = _sort_entries(entries, references)
    of_split = "" if split is None else f", split {split}"
    if not sorting.captions:
        if not sorting.unknown:
            raise InputError([f"{results} holds no captions"])
        raise InputError(
            [
                f"{results} and {annotations}{of_split} have no picture in common: results name "
                f"{_some(sorting.unknown)}, annotations name {_some(references)}; are they of "
                "another split or data set?"
            ]
        )
    problems = _list_problems(sorting, references, f"{annotations}{of_split}", allow_missing)
    if any(problem.fatal for problem in problems):
        raise InputError([problem.to_text() for problem in problems])
    hypotheses = {
        key: sorting.captions[key].caption or "" for key in references if key in sorting.captions
    }
    return Inputs(
        hypotheses=hypotheses,
        references=dict(references),
        problems=tuple(problems),
        results=results,
        annotations=annotations,
        split=split,
    )


def _sort_entries(entries: Iterable[Entry], references: Mapping[str, list[str]]) -> _Sorting:
    sorting = _Sorting()
    names: dict[str, str] = {}
    for entry in entries:
        key = names.get(entry.image_id)
        if key is None:
            key = names[entry.image_id] = resolve_id(entry.image_id, references)
        if key not in references:
            sorting.unknown.setdefault(key, entry)
            continue
        if entry.caption is None:
            sorting.not_text.append(f"{key} ({entry.where})")
        first = sorting.captions.setdefault(key, entry)
        if first is entry:
            continue
        same = _plain(first.caption) == _plain(entry.caption)
        target = sorting.repeated if same else sorting.contradicting
        if key not in target:
            target.append(key)
    return sorting


def _list_problems(
    sorting: _Sorting,
    references: Mapping[str, list[str]],
    annotations: str,
    allow_missing: bool,
) -> list[Problem]:
    captions = sorting.captions
    missing = [key for key in references if key not in captions]
    empty = [
        key
        for key, entry in captions.items()
        if entry.caption is not None and not entry.caption.strip()
    ]
    special = {
        key: token[0]
        for key, entry in captions.items()
        if entry.caption is not None and (token := _SPECIAL.search(entry.caption))
    }
    hint = "; are the results of another split?" if missing and sorting.unknown else ""
    found = [
        Problem(
            "missing",
            f"{_pictures(len(missing))} of the {len(references):,} in {annotations} without a "
            f"caption{hint} "
            + (
                "(left out of all scores)" if allow_missing else "(--allow-missing leaves them out)"
            ),
            len(missing),
            _first(missing),
            fatal=not allow_missing,
        ),
        Problem(
            "contradicting",
            f"{_pictures(len(sorting.contradicting))} with two captions that differ (write one "
            "for each, such as --num-captions 1)",
            len(sorting.contradicting),
            _first(sorting.contradicting),
            fatal=True,
        ),
        Problem(
            "not_text",
            f"{_captions(len(sorting.not_text))} no text",
            len(sorting.not_text),
            _first(sorting.not_text),
            fatal=True,
        ),
        Problem(
            "unknown",
            f"{_pictures(len(sorting.unknown))} not in {annotations}, left out",
            len(sorting.unknown),
            _first(sorting.unknown),
        ),
        Problem(
            "duplicate",
            f"{_pictures(len(sorting.repeated))} listed more than once with the same caption, "
            "counted once",
            len(sorting.repeated),
            _first(sorting.repeated),
        ),
        Problem(
            "empty",
            f"{_captions(len(empty))} empty, scored as such",
            len(empty),
            _first(empty),
        ),
        Problem(
            "special_tokens",
            f"{_captions(len(special), 'holds', 'hold')} special tokens, which count as words in "
            "all scores (write captions without them)",
            len(special),
            _first(f"{key} {name!r}" for key, name in special.items()),
        ),
    ]
    return [problem for problem in found if problem.count]


def resolve_id(image_id: str, references: Mapping[str, object]) -> str:
    """The id of a picture in the annotations that an id or path of a results file means.

    Args:
        image_id: What the results file says.
        references: Known ids.

    Returns:
        The known id, else ``image_id``.

    >>> resolve_id("pictures/a.jpg", {"a.jpg": 0}), resolve_id("000000000042.jpg", {"42": 0})
    ('a.jpg', '42')
    """
    if image_id in references:
        return image_id
    parts = [part for part in image_id.replace("\\", "/").split("/") if part not in ("", ".")]
    for start in range(len(parts)):
        if (suffix := "/".join(parts[start:])) in references:
            return suffix
    if parts and (match := _COCO_NAME.fullmatch(parts[-1])):
        number = str(int(match[1]))
        return number if number in references else image_id
    return image_id


def read_results(path: str | Path) -> list[Entry]:
    """The captions of a results file, told by its content.

    Args:
        path: COCO results, ``{id: caption}``, or JSON lines with ``image`` (or ``image_id``) and
            ``caption``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is of no known kind; names the place and the kinds.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"no results file at {file}; check the path")
    text = read_text(file)
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "").strip()
    if not first:
        raise ValueError(f"{file} is empty; expected {_FORMS}")
    if first[:1] not in "[{":
        raise ValueError(f"{file} begins with {first[:60]!r}; expected {_FORMS}")
    if first.startswith("{") and _is_record(first):
        return list(_read_lines(lines, file))
    try:
        data = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{file}, line {error.lineno}: not JSON ({error.msg}); was the file cut short?"
        ) from None
    except RecursionError:
        raise ValueError(f"{file} is nested too deep; expected {_FORMS}") from None
    if isinstance(data, _Pairs):
        return list(_read_mapping(data, file))
    return list(_read_list(data, file))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, also those that come twice."""


def _read_list(data: Sequence[Any], file: Path) -> Iterator[Entry]:
    for i, item in enumerate(data):
        where = f"[{i}]"
        entry = dict(item) if isinstance(item, _Pairs) else None
        if entry is None or "caption" not in entry:
            raise ValueError(f"{file}, {where}: no image_id and caption there; expected {_FORMS}")
        yield _entry(entry, file, where)


def _read_mapping(pairs: _Pairs, file: Path) -> Iterator[Entry]:
    keys = {key for key, _ in pairs}
    if {"images", "annotations"} <= keys or ("images" in keys and "dataset" in keys):
        raise ValueError(
            f"{file} is a file of annotations, not of results (are the two swapped?); expected "
            f"{_FORMS}"
        )
    for key, value in pairs:
        # coco-caption's own code writes {id: [caption]}.
        texts = value if isinstance(value, list) and not isinstance(value, _Pairs) else [value]
        if isinstance(value, _Pairs) or any(isinstance(text, list) for text in texts):
            raise ValueError(
                f"{file}: expected a caption for {key!r}, got an object; expected {_FORMS}"
            )
        if len(texts) == 0:
            texts = [""]
        for text in texts:
            yield Entry(key, text if isinstance(text, str) else None, f"key {key!r}")


def _read_lines(lines: Sequence[str], file: Path) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{file}, {where}: not JSON ({error.msg}, column {error.colno}); was the file cut "
                "short?"
            ) from None
        if not isinstance(value, dict) or "caption" not in value:
            raise ValueError(f"{file}, {where}: no image and caption there; expected {_FORMS}")
        yield _entry(value, file, where)


def _entry(entry: Mapping[str, Any], file: Path, where: str) -> Entry:
    image_id = entry.get("image_id", entry.get("image", entry.get("id")))
    if isinstance(image_id, float) and image_id.is_integer():
        image_id = int(image_id)  # as tables write numbers
    if isinstance(image_id, bool) or not isinstance(image_id, int | str):
        raise ValueError(
            f"{file}, {where}: image_id must be a number or a text, got {image_id!r}; expected "
            f"{_FORMS}"
        )
    caption = entry["caption"]
    return Entry(str(image_id), caption if isinstance(caption, str) else None, where)


def _is_record(line: str) -> bool:
    """Whether a line is a whole object that describes one picture."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return False
    return (
        isinstance(value, dict)
        and "caption" in value
        and ("image" in value or "image_id" in value or "id" in value)
    )


def _plain(caption: str | None) -> str | None:
    return None if caption is None else " ".join(caption.split())


def _pictures(count: int) -> str:
    return f"{count:,} picture" if count == 1 else f"{count:,} pictures"


def _captions(count: int, one: str = "is", many: str = "are") -> str:
    return f"{count:,} caption {one}" if count == 1 else f"{count:,} captions {many}"


def _first(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(item for item, _ in zip(items, range(EXAMPLES), strict=False))


def _some(keys: Iterable[str]) -> str:
    return ", ".join(_first(keys))
