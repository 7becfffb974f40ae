"""SPICE with a stand-in for Java: the command line, the cache, the time-out and the scores."""

import json
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

from captioner.metrics.score import MetricUnavailable
from captioner.metrics.spice import CORENLP, JAR, SpiceOptions, probe_spice, run_spice, spice
from captioner.metrics.suite import Suite

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script with #!")

# A "java" that answers -version and otherwise scores like SPICE's tool, or fails as it is told.
STAND_IN = """#!{python}
import json, os, sys, time
from pathlib import Path
here = Path(__file__).parent
arguments = sys.argv[1:]
with open(here / "calls.jsonl", "a") as file:
    file.write(json.dumps(arguments) + "\\n")
mode = (here / "mode").read_text()
if "-version" in arguments:
    if mode == "no heap" and any(a.startswith("-Xmx") for a in arguments):
        print("Error: Could not reserve enough space for object heap", file=sys.stderr)
        sys.exit(1)
    print({version!r}, file=sys.stderr)
    sys.exit(0)
if mode == "slow":
    (here / "child").write_text(str(os.getpid()))
    time.sleep(60)
if mode == "crash":
    print("Exception in thread main java.lang.OutOfMemoryError: heap", file=sys.stderr)
    print("\\tat edu.anu.spice.SpiceScorer.main", file=sys.stderr)
    sys.exit(1)
captions = json.loads(Path(arguments[arguments.index("edu.anu.spice.SpiceScorer") + 1]).read_text())
(here / "captions.json").write_text(json.dumps(captions))
out = Path(arguments[arguments.index("-out") + 1])
cache = Path(arguments[arguments.index("-cache") + 1])
(cache / "data.mdb").write_text("parsed")
scores = [
    {{"image_id": c["image_id"], "scores": {{"All": {{"f": c["image_id"] / 10, "pr": 1}}}}}}
    for c in captions
]
if mode == "short":
    scores = scores[1:]
if mode == "null":
    scores[0]["scores"]["All"]["f"] = None
if mode != "silent":
    out.write_text("{{" if mode == "broken" else json.dumps(scores[::-1]))
"""

HYPOTHESES = {"b.jpg": "a dog", "a.jpg": "two cats", 7: "a man"}
REFERENCES = {"a.jpg": ["cats"], 7: ["a man runs"], "b.jpg": ["a dog", "the dog"]}


class Tool:
    def __init__(self, folder: Path, version: str = 'openjdk version "17.0.1"') -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.java = folder / "java"
        self.java.write_text(STAND_IN.format(python=sys.executable, version=version))
        self.java.chmod(0o755)
        package = folder / "spice"
        (package / "lib").mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(package / JAR, "w") as archive:
            archive.writestr("META-INF/MANIFEST.MF", "Main-Class: edu.anu.spice.SpiceScorer\r\n")
        for name in ("ejml-0.23.jar", *CORENLP):
            (package / "lib" / name).touch()
        self.package = package
        self.set("good")

    def set(self, mode: str) -> None:
        (self.folder / "mode").write_text(mode)

    def options(self, **more) -> SpiceOptions:
        return SpiceOptions(
            **{
                "heap": "64M",
                "timeout": 30.0,
                "cache": self.folder / "cache",
                "corenlp": self.folder / "corenlp",
                "folder": self.package,
                "java": str(self.java),
            }
            | more
        )

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]


@pytest.fixture
def tool(tmp_path):
    return Tool(tmp_path / "tool")


def test_scores_come_back_to_their_pictures(tool):
    found = spice(HYPOTHESES, REFERENCES, tool.options())
    assert found.per_image == {"b.jpg": 0.0, "a.jpg": 0.1, 7: 0.2}
    assert list(found.per_image) == list(HYPOTHESES)
    assert found.corpus == pytest.approx(0.1)
    given = json.loads((tool.folder / "captions.json").read_text())
    assert given[0] == {"image_id": 0, "test": "a dog", "refs": ["a dog", "the dog"]}


def test_the_command_line(tool):
    spice(HYPOTHESES, REFERENCES, tool.options())
    *_, call = tool.calls()
    assert call[0] == "-Xmx64M"
    assert "java.base/java.lang=ALL-UNNAMED" in call
    classes = call[call.index("-cp") + 1].split(os.pathsep)
    assert {Path(path).name for path in classes} == {JAR, "ejml-0.23.jar", *CORENLP}
    assert call[call.index("-cache") + 1] == str(tool.folder / "cache")
    assert call[-2:] == ["-subset", "-silent"]


def test_nothing_is_written_beside_the_tool(tool):
    before = sorted(tool.package.rglob("*"))
    spice(HYPOTHESES, REFERENCES, tool.options())
    assert sorted(tool.package.rglob("*")) == before
    assert (tool.folder / "cache" / "data.mdb").read_text() == "parsed"


def test_the_cache_is_the_users_own_by_default(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    spice(HYPOTHESES, REFERENCES, tool.options(cache=None))
    assert (tmp_path / "xdg" / "captioner" / "spice" / "cache" / "data.mdb").exists()


def test_old_java_needs_no_opened_modules(tmp_path):
    tool = Tool(tmp_path / "tool", 'java version "1.8.0_402"')
    found = probe_spice(tool.options())
    assert found.java_version == 8
    assert "--add-opens" not in found.command


def test_corenlp_may_lie_in_a_folder_of_its_own(tool):
    (tool.folder / "corenlp").mkdir()
    for name in CORENLP:
        (tool.package / "lib" / name).rename(tool.folder / "corenlp" / name)
    assert str(tool.folder / "corenlp" / CORENLP[0]) in " ".join(
        probe_spice(tool.options()).command
    )


def test_what_is_missing_is_named_before_anything_runs(tool, tmp_path):
    (tool.package / "lib" / CORENLP[1]).unlink()
    with pytest.raises(MetricUnavailable, match=f"{CORENLP[1]} is missing.*stanfordnlp.github.io"):
        probe_spice(tool.options())
    with pytest.raises(MetricUnavailable, match=r"no nojava on the PATH.*Java 8") as error:
        probe_spice(tool.options(java="nojava"))
    assert "models.jar" in str(error.value)  # all that is missing at once
    with pytest.raises(MetricUnavailable, match=r"captioner\[metrics\]"):
        probe_spice(tool.options(folder=tmp_path))


def test_an_old_java_is_named(tmp_path):
    tool = Tool(tmp_path / "tool", 'java version "1.7.0_80"')
    with pytest.raises(MetricUnavailable, match="Java 7 is too old"):
        probe_spice(tool.options())


def test_a_heap_that_cannot_be_had_is_named(tool):
    with pytest.raises(MetricUnavailable, match="900T is more than this machine's"):
        probe_spice(tool.options(heap="900T"))
    tool.set("no heap")
    with pytest.raises(MetricUnavailable, match="Could not reserve enough space"):
        probe_spice(tool.options())


def test_a_time_out_ends_the_tool(tool):
    tool.set("slow")
    start = time.monotonic()
    with pytest.raises(MetricUnavailable, match=r"longer than 3 s.*--spice-timeout"):
        spice(HYPOTHESES, REFERENCES, tool.options(timeout=3.0))
    assert time.monotonic() - start < 40
    child = tool.folder / "child"
    if child.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(child.read_text()), 0)


@pytest.mark.parametrize(
    ("mode", "match"),
    [
        ("crash", "status 1: .*OutOfMemoryError: heap; give it more memory with --spice-heap"),
        ("silent", "wrote no scores"),
        ("broken", "cannot be read"),
        ("short", "scored 2 pictures, 3 were given"),
    ],
)
def test_a_tool_that_fails_is_a_reason(tool, mode, match):
    tool.set(mode)
    with pytest.raises(MetricUnavailable, match=match):
        spice(HYPOTHESES, REFERENCES, tool.options())


def test_a_picture_without_a_score_makes_the_set_undefined(tool):
    tool.set("null")
    found = run_spice(probe_spice(tool.options()), HYPOTHESES, REFERENCES)
    assert not found.defined
    assert "1 pictures, such as 'b.jpg'" in found.reason
    assert found.per_image["a.jpg"] == 0.1


@pytest.mark.parametrize("mode", ["crash", "broken", "silent"])
def test_no_failure_touches_the_other_scores(tool, mode):
    names = ("Bleu", "ROUGE_L", "CIDEr")
    alone, _ = Suite.probe(names).score(HYPOTHESES, REFERENCES)
    suite = Suite.probe((*names, "SPICE"), tool.options())
    assert suite.metrics == (*names, "SPICE")
    tool.set(mode)
    scores, absent = suite.score(HYPOTHESES, REFERENCES)
    assert scores == alone
    assert set(absent) == {"SPICE"}


def test_the_suite_gives_spice_its_place(tool):
    scores, absent = Suite.probe(("SPICE", "Bleu"), tool.options()).score(HYPOTHESES, REFERENCES)
    assert list(scores) == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "SPICE"]
    assert absent == {}


@pytest.mark.parametrize(
    ("more", "match"), [({"heap": "8"}, "such as 8G"), ({"timeout": 0.0}, "above 0 seconds")]
)
def test_options_that_mean_nothing_are_refused(more, match):
    with pytest.raises(ValueError, match=match):
        SpiceOptions(**more)
