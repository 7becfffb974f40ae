"""``captioner evaluate`` and ``captioner compare`` as a user calls them."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from captioner.cli import main
from captioner.metrics.suite import METRICS, score_captions

REFERENCES = {
    "1": ["A dog runs on grass.", "The dog is running!"],
    "2": ["Two cats sleep on a red sofa."],
    "3": ["A man rides a horse.", "A person on a horse.", "Man on horse"],
    "4": ["A bowl of ripe fruit."],
    "5": ["People walk along the beach at night."],
    "6": ["A child eats ice cream."],
}
CAPTIONS = {
    "1": "A dog runs.",
    "2": "Two cats on a sofa.",
    "3": "A man on a horse.",
    "4": "A bowl of soup.",
    "5": "People on the beach.",
    "6": "A dog runs.",
}
PLAIN = ("--metrics", *METRICS)


@pytest.fixture
def files(tmp_path, monkeypatch):
    # No tool of this machine and no cache of this user takes part.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    class Files:
        folder = tmp_path

        def write(self, name, value):
            (tmp_path / name).write_text(json.dumps(value), encoding="utf-8")
            return str(tmp_path / name)

        def results(self, captions=CAPTIONS, name="results.json"):
            return self.write(name, captions)

        def annotations(self):
            return self.write("refs.json", REFERENCES)

    return Files()


def expected():
    def words(text):
        return " ".join(text.lower().replace(".", "").replace("!", "").split())

    return score_captions(
        {key: words(text) for key, text in CAPTIONS.items()},
        {key: [words(text) for text in texts] for key, texts in REFERENCES.items()},
    )


def test_the_files_hold_unscaled_scores_and_the_table_says_times_100(files, capsys):
    output = files.folder / "out"
    status = main(
        ["evaluate", files.results(), files.annotations(), "--output", str(output), *PLAIN]
    )
    table = capsys.readouterr().out
    assert status == 0
    metrics = json.loads((output / "metrics.json").read_text())
    assert list(metrics["scores"]) == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"]
    for name, score in expected().items():
        found = metrics["scores"][name]
        assert found["value"] == pytest.approx(score.corpus, abs=1e-9)
        assert found["low"] < found["value"] < found["high"]
        line = next(line for line in table.splitlines() if line.startswith(f"{name} "))
        assert float(line.split()[1]) == pytest.approx(100 * score.corpus, abs=0.005)
    assert metrics["absent"] == {}
    assert (metrics["pictures"], metrics["references"], metrics["complete"]) == (6, 9, True)
    assert metrics["tokenizer"] == "ptb-1"
    assert "x100" in table
    assert "tokens: ptb-1" in table
    assert "6 pictures, 9 references" in table
    assert "document frequencies: the references of these 6 pictures" in table
    assert "95 % interval" in table
    assert "5 distinct of 6" in table


def test_the_table_of_pictures(files):
    output = files.folder / "out"
    main(["evaluate", files.results(), files.annotations(), "--output", str(output), *PLAIN])
    with (output / "per_image.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image_id"] for row in rows] == list(REFERENCES)
    assert rows[0]["caption"] == "A dog runs."
    assert rows[0]["tokens"] == "a dog runs"
    assert (rows[0]["words"], rows[2]["references"]) == ("3", "3")
    for name, score in expected().items():
        values = {row["image_id"]: float(row[name]) for row in rows}
        assert values == pytest.approx(score.per_image, abs=1e-9)


def test_an_absent_metric_is_no_failure_unless_it_was_named(files, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(files.folder))  # no Java there
    output = files.folder / "out"
    command = ["evaluate", files.results(), files.annotations(), "--output", str(output)]
    monkeypatch.setattr("captioner.metrics.meteor.meteor_unavailable", lambda: "no data")
    assert main(command) == 0
    captured = capsys.readouterr()
    metrics = json.loads((output / "metrics.json").read_text())
    assert set(metrics["absent"]) == {"METEOR", "SPICE"}
    assert "no java on the PATH" in metrics["absent"]["SPICE"]
    assert "SPICE" not in metrics["scores"]
    assert "CIDEr" in metrics["scores"]
    assert "METEOR     absent: no data" in captured.out
    assert "captioner: SPICE is absent: " in captured.err
    assert main([*command, "--metrics", "CIDEr", "spice"]) == 1
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["scores"]["CIDEr"]["value"] > 0
    assert main([*command, "--metrics", "SPICE"]) == 1
    assert main([*command, "--metrics", "CIDEr", "bleu-4"]) == 0


def test_one_picture_is_undefined_with_the_reason_and_not_0(files, capsys):
    output = files.folder / "out"
    results = files.results({"1": "a dog"})
    annotations = files.write("one.json", {"1": REFERENCES["1"]})
    assert main(["evaluate", results, annotations, "--output", str(output), *PLAIN]) == 0
    out = capsys.readouterr().out
    score = json.loads((output / "metrics.json").read_text())["scores"]["CIDEr"]
    assert score["value"] is None
    assert (score["low"], score["high"]) == (None, None)
    assert "only one picture" in score["reason"]
    assert "CIDEr      undefined: CIDEr weighs" in out
    assert "--df FILE" in out
    assert "no interval of one picture" in out
    with (output / "per_image.csv").open(encoding="utf-8", newline="") as file:
        assert next(csv.DictReader(file))["CIDEr"] == ""
    assert "undefined" in (output / "report.html").read_text(encoding="utf-8")


def test_document_frequencies_of_a_corpus(files, capsys):
    df = str(files.folder / "df.json.gz")
    everything = ["evaluate", files.results(), files.annotations(), *PLAIN, "--save-df", df]
    assert main(everything) == 0
    capsys.readouterr()
    output = files.folder / "out"
    results = files.results({"1": CAPTIONS["1"]}, "one.json")
    annotations = files.write("one-ref.json", {"1": REFERENCES["1"]})
    command = ["evaluate", results, annotations, "--df", df, "--output", str(output), *PLAIN]
    assert main(command) == 0
    assert "document frequencies: df.json.gz (6 pictures)" in capsys.readouterr().out
    found = json.loads((output / "metrics.json").read_text())["scores"]["CIDEr"]["value"]
    assert found == pytest.approx(expected()["CIDEr"].per_image["1"], abs=1e-9)


def test_missing_pictures(files, capsys):
    part = {key: CAPTIONS[key] for key in ("1", "3")}
    command = ["evaluate", files.results(part), files.annotations(), *PLAIN]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "captioner: error: 4 pictures of the 6 in refs.json without a caption (--allow-missing "
        "leaves them out): 2, 4, 5, 6\n"
    )
    output = files.folder / "out"
    assert main([*command, "--allow-missing", "--output", str(output)]) == 0
    captured = capsys.readouterr()
    assert "PART OF THE SET: 2 of 6 pictures" in captured.out
    assert "document frequencies: the references of all 6 pictures" in captured.out
    metrics = json.loads((output / "metrics.json").read_text())
    assert not metrics["complete"]
    assert metrics["inputs"]["missing"]["count"] == 4
    per_image = expected()["CIDEr"].per_image
    assert metrics["scores"]["CIDEr"]["value"] == pytest.approx(
        (per_image["1"] + per_image["3"]) / 2, abs=1e-9
    )
    assert "PART OF THE SET" in (output / "report.html").read_text(encoding="utf-8")


def test_contradicting_captions(files, capsys):
    results = files.write(
        "r.json",
        [
            *({"image_id": int(k), "caption": c} for k, c in CAPTIONS.items()),
            {"image_id": 2, "caption": "Dogs."},
        ],
    )
    assert main(["evaluate", results, files.annotations(), *PLAIN, "--allow-missing"]) == 1
    assert "1 picture with two captions that differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--metrics", "BLEURT"], "metrics must be names out of Bleu"),
        (["--replicates", "0"], "must be at least 1"),
        (["--spice-heap", "much"], "heap must be"),
        (["--df", "none.json"], "no document frequencies at none.json"),
        (["--split", "test"], "holds no splits"),
        (["--pictures", "."], "--output DIR"),
        (["--train-split", "train"], "--train-annotations"),
    ],
)
def test_wrong_arguments_give_2_and_one_line(files, capsys, arguments, match):
    assert main(["evaluate", files.results(), files.annotations(), *arguments]) == 2
    err = capsys.readouterr().err
    assert match in err
    assert "Traceback" not in err


def test_copies_of_training_captions_and_leaks_are_told(files, capsys):
    train = files.write("train.json", {"90": ["A dog runs!"], "3": ["Something else."]})
    command = ["evaluate", files.results(), files.annotations(), *PLAIN]
    assert main([*command, "--train-annotations", train]) == 0
    captured = capsys.readouterr()
    assert "33.3% stand word for word in the training set" in captured.out
    assert "1 of the scored pictures are also in the training captions: 3" in captured.err
    assert main([*command, "--train-annotations", files.annotations()]) == 2
    assert "--train-split train" in capsys.readouterr().err


def test_a_line_break_moves_no_caption_to_another_picture(files, capsys):
    output = files.folder / "out"
    broken = {key: text.replace(" ", "\n", 1) for key, text in CAPTIONS.items()}
    main(["evaluate", files.results(broken), files.annotations(), "--output", str(output), *PLAIN])
    found = json.loads((output / "metrics.json").read_text())["scores"]
    for name, score in expected().items():
        assert found[name]["value"] == pytest.approx(score.corpus, abs=1e-9)


def test_compare(files, capsys):
    better = {**CAPTIONS, "4": "A bowl of ripe fruit.", "6": "A child eats ice cream."}
    output = files.folder / "out"
    status = main(
        [
            "compare",
            files.results(),
            files.results(better, "better.json"),
            files.annotations(),
            "--output",
            str(output),
            "--replicates",
            "200",
            *PLAIN,
        ]
    )
    out = capsys.readouterr().out
    assert status == 0
    assert "A = results.json, B = better.json" in out
    line = next(line for line in out.splitlines() if line.startswith("ROUGE_L"))
    assert line.endswith("2 / 0")
    assert "x100" in out
    assert "tokens: ptb-1" in out
    value = json.loads((output / "comparison.json").read_text())
    found = value["differences"]["CIDEr"]
    assert found["value"] == pytest.approx(
        value["b"]["scores"]["CIDEr"]["value"] - value["a"]["scores"]["CIDEr"]["value"]
    )
    assert 0 <= found["low"] <= found["value"] <= found["high"]
    assert 0 < found["p_value"] <= 1


def test_compare_takes_pictures_that_both_have(files, capsys):
    first = files.results({key: CAPTIONS[key] for key in ("1", "2", "3")}, "a.json")
    second = files.results({key: CAPTIONS[key] for key in ("2", "3", "4")}, "b.json")
    command = ["compare", first, second, files.annotations(), *PLAIN]
    assert main(command) == 1
    assert "without a caption" in capsys.readouterr().err
    assert main([*command, "--allow-missing"]) == 0
    captured = capsys.readouterr()
    assert "PART OF THE SET: 2 of 6 pictures" in captured.out
    assert "a.json: note: 3 pictures" in captured.err


def test_the_script_is_the_command(files):
    script = Path(__file__).resolve().parents[2] / "scripts" / "evaluate.py"
    done = subprocess.run(
        [sys.executable, str(script), files.results(), files.annotations(), *PLAIN],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "CIDEr" in done.stdout


def test_no_pytorch_is_loaded(files):
    code = (
        "import sys; from captioner.cli import main; status = main(sys.argv[1:]); "
        "print(sorted({'torch', 'pytorch_lightning', 'torchmetrics'} & set(sys.modules))); "
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "evaluate", files.results(), files.annotations(), *PLAIN],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"
