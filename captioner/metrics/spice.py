"""SPICE through the Java tool that pycocoevalcap ships, guarded on every side.

The tool is probed before anything is computed; nothing is downloaded and nothing is written
beside the package; a failure is a reason and no more.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioner.metrics.meteor.paraphrases import cache_folder
from captioner.metrics.score import ImageKey, KeyT, MetricUnavailable, Score, check_ids

JAR = "spice-1.0.jar"
CORENLP = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
CORENLP_ARCHIVE = "stanford-corenlp-full-2015-12-09.zip"
MIN_JAVA = 8

_HEAP = re.compile(r"(\d+)([kmgtKMGT])")
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_PROBE_SECONDS = 60
# From version 9 on, Java hides the inside of its classes, which the tool's serialiser reads.
_OPENED = ("java.lang", "java.util", "java.math", "java.net", "java.nio", "java.text", "sun.nio.ch")


@dataclass(frozen=True)
class SpiceOptions:
    """How the Java tool is run.

    Args:
        heap: Memory that Java may take, as its ``-Xmx`` writes it.
        timeout: Seconds after which the tool is ended.
        cache: Folder of parsed references, which makes a second run quick; in the user's cache
            by default.
        corenlp: Folder that holds CoreNLP's two jars, if they are not beside the tool's others.
        folder: Folder of ``spice-1.0.jar`` and ``lib``; pycocoevalcap's by default.
        java: The program to run.
    """

    heap: str = "8G"
    timeout: float = 3600.0
    cache: Path | None = None
    corenlp: Path = field(default_factory=lambda: cache_folder() / "spice" / "corenlp")
    folder: Path | None = None
    java: str = "java"

    def __post_init__(self) -> None:
        if _HEAP.fullmatch(self.heap) is None:
            raise ValueError(f"heap must be a number and a unit, such as 8G, got {self.heap!r}")
        if not self.timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {self.timeout}")

    @property
    def cache_folder(self) -> Path:
        """``cache``, or the folder that stands for it."""
        return (self.cache or cache_folder() / "spice" / "cache").absolute()

    @property
    def heap_bytes(self) -> int:
        """``heap`` in bytes."""
        match = _HEAP.fullmatch(self.heap)
        assert match is not None
        return int(match[1]) * _UNITS[match[2].lower()]


@dataclass(frozen=True)
class SpiceTool:
    """A tool that was found to be complete.

    Args:
        command: Program and arguments that come before the tool's own.
        java_version: Major version, such as 17.
        options: How it is to be run.
    """

    command: tuple[str, ...]
    java_version: int
    options: SpiceOptions

    def arguments(self, inputs: Path, outputs: Path) -> list[str]:
        """The whole command line."""
        files = [str(inputs), "-cache", str(self.options.cache_folder), "-out", str(outputs)]
        return [*self.command, *files, "-subset", "-silent"]


def probe_spice(options: SpiceOptions | None = None) -> SpiceTool:
    """Make sure, in a second or so, that SPICE can run here.

    Args:
        options: How the tool is to be run.

    Returns:
        The tool, ready to be run.

    Raises:
        MetricUnavailable: Java, the tool, CoreNLP's files or memory are missing; says which, and
            what to do.
    """
    options = options or SpiceOptions()
    folder = options.folder or _package_folder()
    jar = folder / JAR
    if not jar.is_file():
        raise MetricUnavailable(
            f"SPICE's tool {JAR} is not in {folder}; install it with "
            "`pip install 'captioner[metrics]'`"
        )
    libraries = sorted((folder / "lib").glob("*.jar"))
    there = {path.name for path in libraries}
    extra = [options.corenlp / name for name in CORENLP if name not in there]
    missing = [path.name for path in extra if not path.is_file()]
    java = shutil.which(options.java)
    version = None if java is None else _java_version(java)
    reasons = []
    if java is None:
        reasons.append(f"there is no {options.java} on the PATH (install Java {MIN_JAVA} or newer)")
    elif version is None:
        reasons.append(f"`{options.java} -version` says no version (install Java {MIN_JAVA})")
    elif version < MIN_JAVA:
        reasons.append(f"Java {version} is too old (install Java {MIN_JAVA} or newer)")
    if missing:
        reasons.append(
            f"CoreNLP's {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing "
            f"(take them from {CORENLP_ARCHIVE} of stanfordnlp.github.io/CoreNLP and put them "
            f"into {options.corenlp})"
        )
    memory = _memory()
    if memory is not None and options.heap_bytes > memory:
        reasons.append(
            f"a heap of {options.heap} is more than this machine's {memory / (1 << 30):.1f} GB of "
            "memory (give less with --spice-heap, such as 4G)"
        )
    elif java is not None and not reasons and (problem := _heap_problem(java, options.heap)):
        reasons.append(f"Java cannot take a heap of {options.heap}: {problem} (--spice-heap 4G)")
    if reasons:
        raise MetricUnavailable("; ".join(reasons))
    assert java is not None
    assert version is not None
    command = [java, f"-Xmx{options.heap}"]
    if version >= 9:
        for package in _OPENED:
            command += ["--add-opens", f"java.base/{package}=ALL-UNNAMED"]
    classes = os.pathsep.join(str(path.absolute()) for path in (jar, *libraries, *extra))
    command += ["-cp", classes, _main_class(jar)]
    return SpiceTool(tuple(command), version, options)


def spice(
    hypotheses: Mapping[KeyT, str],
    references: Mapping[KeyT, Sequence[str]],
    options: SpiceOptions | None = None,
) -> Score:
    """F-measure of the objects, attributes and relations that captions speak of.

    Args:
        hypotheses: Tokenised caption of each picture.
        references: Tokenised captions that people wrote, at least one for each picture.
        options: How the Java tool is run.

    Returns:
        The mean over pictures, in [0, 1].

    Raises:
        MetricUnavailable: The tool cannot run here, failed, took too long or gave no scores.
        ValueError: The two sides are not for the same pictures, or a picture has no references.

    References:
        Anderson et al. 2016, SPICE: Semantic propositional image caption evaluation, section 3.
    """
    keys = check_ids(hypotheses, references)
    return run_spice(probe_spice(options), hypotheses, {key: references[key] for key in keys})


def run_spice(
    tool: SpiceTool,
    hypotheses: Mapping[KeyT, str],
    references: Mapping[KeyT, Sequence[str]],
) -> Score:
    """Run a tool that was probed; see ``spice``."""
    keys = check_ids(hypotheses, references)
    # Places in a list are the ids that the tool sees, so that no id of ours can trouble it.
    inputs = [
        {"image_id": i, "test": hypotheses[key], "refs": list(references[key])}
        for i, key in enumerate(keys)
    ]
    with tempfile.TemporaryDirectory(prefix="captioner-spice-") as name:
        source, target = Path(name) / "captions.json", Path(name) / "scores.json"
        source.write_text(json.dumps(inputs), encoding="utf-8")
        try:
            tool.options.cache_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MetricUnavailable(f"SPICE's cache folder cannot be made: {error}") from None
        _run(tool.arguments(source, target), tool.options, Path(name))
        values = _read_scores(target, len(keys))
    per_image: dict[ImageKey, float] = dict(zip(keys, values, strict=True))
    undefined = [key for key, value in per_image.items() if math.isnan(value)]
    if undefined:
        reason = (
            f"SPICE found nothing to compare in {len(undefined):,} pictures, such as "
            f"{undefined[0]!r}"
        )
        return Score(math.nan, per_image, reason)
    return Score(math.fsum(values) / len(values), per_image)


def _run(command: Sequence[str], options: SpiceOptions, folder: Path) -> None:
    try:
        # A session of its own, so that a tool that is ended takes its children along.
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise MetricUnavailable(f"SPICE's tool could not be started: {error}") from None
    try:
        _, errors = process.communicate(timeout=options.timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        raise MetricUnavailable(
            f"SPICE's tool took longer than {options.timeout:g} s and was ended; give it longer "
            "with --spice-timeout"
        ) from None
    except BaseException:
        _end(process)
        raise
    if process.returncode != 0:
        said = _last_lines(errors.decode("utf-8", "replace"))
        more = "; give it more memory with --spice-heap" if "OutOfMemory" in said else ""
        raise MetricUnavailable(
            f"SPICE's tool ended with status {process.returncode}: {said or 'no message'}{more}"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()


def _last_lines(text: str, most: int = 300) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The message stands before the list of calls.
    said = [line for line in lines if not line.startswith(("at ", "..."))]
    joined = " | ".join(said[-3:])
    return joined if len(joined) <= most else f"...{joined[-most:]}"


def _read_scores(path: Path, num: int) -> list[float]:
    try:
        items: Any = json.loads(path.read_text(encoding="utf-8"))
        found = {int(item["image_id"]): item["scores"]["All"]["f"] for item in items}
    except FileNotFoundError:
        raise MetricUnavailable("SPICE's tool wrote no scores") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetricUnavailable(
            f"SPICE's tool wrote scores that cannot be read ({type(error).__name__}: {error})"
        ) from None
    if sorted(found) != list(range(num)):
        raise MetricUnavailable(
            f"SPICE's tool scored {len(found):,} pictures, {num:,} were given to it"
        )
    return [_number(found[i]) for i in range(num)]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _package_folder() -> Path:
    try:
        found = importlib.util.find_spec("pycocoevalcap")
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise MetricUnavailable(
            "SPICE's tool comes with pycocoevalcap, which is not installed; install it with "
            "`pip install 'captioner[metrics]'`"
        )
    return Path(next(iter(found.submodule_search_locations))) / "spice"


def _ask_java(java: str, *arguments: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [java, *arguments, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stderr + done.stdout).decode("utf-8", "replace")


def _java_version(java: str) -> int | None:
    status, said = _ask_java(java)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if status != 0 or match is None:
        return None
    # Java 8 calls itself 1.8.
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _heap_problem(java: str, heap: str) -> str | None:
    status, said = _ask_java(java, f"-Xmx{heap}")
    return None if status == 0 else _last_lines(said) or f"status {status}"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _main_class(jar: Path) -> str:
    try:
        with zipfile.ZipFile(jar) as archive:
            manifest = archive.read("META-INF/MANIFEST.MF").decode("utf-8", "replace")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise MetricUnavailable(f"{jar} is no jar that can be read ({error})") from None
    match = re.search(r"^Main-Class:\s*(\S+)", manifest, re.MULTILINE)
    if match is None:
        raise MetricUnavailable(f"{jar} names no class to run")
    return match[1]
