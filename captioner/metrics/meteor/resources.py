"""METEOR's data, which the package pycocoevalcap brings: word lists inside the jar, paraphrases."""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from captioner.metrics.meteor.normalizer import Normalizer
from captioner.metrics.meteor.paraphrases import ParaphraseTable, cache_folder
from captioner.metrics.meteor.words import Stemmer, Synonyms
from captioner.metrics.score import MetricUnavailable

INSTALL = 'pip install "captioner[metrics]"'

_JAR = "meteor-1.5.jar"
_PARAPHRASES = Path("data", "paraphrase-en.gz")


@dataclass(frozen=True)
class Resources:
    """What the matchers of English need.

    Args:
        normalize: Caption -> words.
        function_words: Words that count less.
        stem: Stem of a word.
        synonyms: Synonym sets of a word.
        paraphrases: Phrases that say the same.
    """

    normalize: Normalizer
    function_words: frozenset[str]
    stem: Stemmer
    synonyms: Synonyms
    paraphrases: ParaphraseTable


def meteor_unavailable() -> str | None:
    """Why METEOR cannot be computed here, and what to do; None where it can."""
    try:
        _data_folder()
        _check_stemmer()
    except MetricUnavailable as error:
        return str(error)
    return None


def load_resources(data: Path | None = None, cache: Path | None = None) -> Resources:
    """Read METEOR's English data.

    Args:
        data: Folder with the jar; that of the installed pycocoevalcap when not given.
        cache: Folder for the index of the paraphrases; the user's cache folder when not given.

    Returns:
        The data; the same object for the same arguments.

    Raises:
        MetricUnavailable: pycocoevalcap or nltk is not installed, a file is missing or damaged, or
            the index cannot be written.
    """
    _check_stemmer()
    return _load(data or _data_folder(), cache or cache_folder())


@lru_cache(maxsize=2)
def _load(data: Path, cache: Path) -> Resources:
    from nltk.stem.snowball import EnglishStemmer

    try:
        with zipfile.ZipFile(data / _JAR) as jar:
            function_words = jar.read("function/english.words").decode()
            prefixes = jar.read("nonbreaking/english.prefixes").decode()
            synsets = jar.read("synonym/english.synsets").decode()
            exceptions = jar.read("synonym/english.exceptions").decode()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise MetricUnavailable(
            f"METEOR's word lists cannot be read from {data / _JAR} ({error}); "
            f"install them again: {INSTALL} --force-reinstall"
        ) from error
    try:
        paraphrases = ParaphraseTable.open(data / _PARAPHRASES, cache)
    except (OSError, ValueError) as error:
        raise MetricUnavailable(
            f"the index of METEOR's paraphrases ({data / _PARAPHRASES}) cannot be made in {cache} "
            f"({error}); set XDG_CACHE_HOME to a folder that can be written and has 100 MB of "
            "room, or install the data again: "
            f"{INSTALL} --force-reinstall"
        ) from error
    return Resources(
        normalize=Normalizer(prefixes),
        function_words=frozenset(function_words.split()),
        stem=Stemmer(EnglishStemmer()),
        synonyms=Synonyms(synsets, exceptions),
        paraphrases=paraphrases,
    )


def _data_folder() -> Path:
    """Where pycocoevalcap lies, found without an import."""
    spec = importlib.util.find_spec("pycocoevalcap")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(location) / "meteor"
        if (folder / _JAR).is_file() and (folder / _PARAPHRASES).is_file():
            return folder
    found = "is not installed" if spec is None else "lacks METEOR's data"
    raise MetricUnavailable(
        f"METEOR needs the word lists of pycocoevalcap, which {found}; install it: {INSTALL}"
    )


def _check_stemmer() -> None:
    if importlib.util.find_spec("nltk") is None:
        raise MetricUnavailable(
            f"METEOR needs nltk's stemmer, and nltk is not installed; install it: {INSTALL}"
        )
