"""Makes meteor.json: what METEOR 1.5 (the jar of pycocoevalcap) gives for made-up captions.

Run with `python tests/metrics/golden/make_meteor.py`; needs the extra `metrics` and Java. The
captions are written for this test (none is cut from a data set). `normalized` holds the words that
the jar writes into its alignments, `scores` what the Python class of pycocoevalcap gives.
"""

import json
import platform
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import pycocoevalcap.meteor.meteor as package

# (name of the picture, caption to be scored, references)
PICTURES = [
    ("equal", "a yellow kite hangs over the pier", ["a yellow kite hangs over the pier"]),
    (
        "equal-to-one-of-several",
        "two goats stand on a stone wall",
        ["a pair of goats look down from a wall", "two goats stand on a stone wall"],
    ),
    ("nothing-shared", "purple lamps everywhere", ["he reads to his niece", "an open book"]),
    ("empty-caption", "", ["the baker lifts a tray", "a tray of rolls"]),
    ("empty-reference", "a tray of rolls", ["", "the baker lifts a tray of warm rolls"]),
    ("both-empty", "", [""]),
    ("one-word", "goats", ["goats", "two goats"]),
    ("stem", "two bakers lifted a tray", ["two bakers lifting a tray", "the baker lifts trays"]),
    (
        "stem-of-a-replaced-suffix",
        "a realization of the theorization",
        ["they realize and theorize a lot", "vocationally vocative"],
    ),
    ("stem-and-synonym-alone", "run", ["running"]),
    ("stem-and-synonym-in-a-chunk", "run home", ["running home"]),
    ("synonym", "a sofa beside an automobile", ["a couch beside a car", "the couches and cars"]),
    ("synonym-by-exception", "the men rode bicycles", ["a man drove on his bike", "she rides"]),
    ("two-letters-and-ss", "as the bus passes", ["a bus pass", "ass or bus"]),
    (
        "paraphrase",
        "a large number of children play in front of the barn",
        ["many kids are playing before the barn", "a lot of children in front of a barn"],
    ),
    ("paraphrase-both-directions", "an elderly man sits", ["an old man is sitting", "old men sat"]),
    ("paraphrase-on-the-diagonal", "two people near a lake", ["two men near a lake"]),
    (
        "chunks",
        "on the wall a cat and under the wall a dog",
        ["a dog under the wall and a cat on the wall", "a cat on a wall above a dog"],
    ),
    (
        "repeated-words",
        "a man in a hat and a man in a coat with a dog and a cat in a box on a cart",
        ["a dog and a man and a cat in a hat in a coat on a box with a cart in a barn"],
    ),
    ("function-words-only", "the of and to a in", ["a in the of to and", "of the"]),
    ("punctuation-tokens", "-lrb- a goat -rrb- 's hat & tie", ["a goat 's hat and tie", "goats"]),
    ("hyphens", "a black-and-white t-shirt", ["a black and white t shirt", "a shirt"]),
    ("numbers", "bus no. 5 leaves at 12:45 with 1,000 people", ["bus 5 leaves at 12:45", "no bus"]),
    ("abbreviations", "mr. brown from the u.s. waits on main st.", ["mr brown of the us waits"]),
    ("accents", "un café près d'une église", ["un cafe dans une eglise", "un café"]),
    ("other-scripts", "猫 と 犬 и собака", ["猫 と 鳥", "кошка и собака"]),
    ("double-space", "a  goat eats  hay", ["a goat eats", "the goat eats hay from a bucket"]),
    (
        "much-longer",
        "a man in a long coat and a man in a short coat walk a dog and a dog walks a man in a park",
        ["a man walks a dog in a park", "two men and a dog"],
    ),
    (
        "much-shorter",
        "a park",
        ["a man in a long coat walks his small white dog through the park on a wet afternoon"],
    ),
    (
        "many-references",
        "a woman pours tea into a small green cup",
        [
            "tea is poured into a cup by a lady",
            "a lady pouring tea",
            "the green cup fills with tea as a woman pours",
            "a small cup , green , and a teapot",
            "somebody makes tea",
        ],
    ),
]

# Among equally good alignments the tool takes another one here.
TIES = [
    (
        "stems-between-two-articles",
        "the bakers lifted trays",
        ["a baker lifting his tray", "the baker lifts the tray"],
    ),
]

TEXTS = [
    "'s 's's o'clock 'o' rock 'n' roll 1990's '90s ' a' 5' 6'' '' `` cat's",
    "-lrb- cat -rrb- --  - a-b-c 1-2-3 -5 a- -a a--b ..-s b.-c",
    "1,000 1, 2 a,b ,a ,, , 3,a a,3 10,000,000 1,2,3 ,--,",
    "3.14 .5 5. a.b a.b. a. .a ... . .. u.s.a. u.s.a a.b.c.d. e.g. 5p.m. 5.p.m no. 5 no. a no.",
    "Mr. Smith. Mr. St. Ph.D. No. 5 No. Five Art. 5 X. Nos. 5 foo.com. É A. I.",
    "$5 5% £5 #5 @a a@b.com http://a.b.com/c_d?e=f&g a_b __ _",
    'a;b a(b) [a] <a> a*b a|b a\\b "a" “a” \u2018a\u2019 a\u2019s «a» „a“',
    "é café ÉCOLE straße 日本語 привет мир … \u2013 — a…b a\u2013b a—b é-é é.é. é'é 5'é",
    "½ ² x² 🙂 a🙂b ไทย שלום a\u00a0b a\u3000b 5.\u00a0b İstanbul ΣΑΣ",
    "end of it.",
    "t.v. d.c. st. ave. i'm y'all don't 'em d'oeuvre schoolbus/boat",
]


def normalize(texts: list[str]) -> list[str]:
    """The words that the jar aligns, parted by spaces."""
    jar = Path(package.__file__).parent / package.METEOR_JAR
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.write_text("\n".join(texts) + "\n", encoding="utf-8")
        command = ["java", "-Dfile.encoding=UTF-8", "-Xmx2G", "-jar", str(jar), "text", "text"]
        command += ["-l", "en", "-norm", "-m", "exact", "-writeAlignments"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        lines = Path(folder, "meteor-align.out").read_text(encoding="utf-8").split("\n")
    return [lines[i + 1] for i, line in enumerate(lines) if line.startswith("Alignment\t")]


def score(pictures: list[tuple[str, str, list[str]]]) -> tuple[float, list[dict[str, object]]]:
    """Corpus score, and the pictures with theirs."""
    corpus, scores = package.Meteor().compute_score(
        {name: references for name, _, references in pictures},
        {name: [caption] for name, caption, _ in pictures},
    )
    return corpus, [
        {"name": name, "caption": caption, "references": references, "score": score}
        for (name, caption, references), score in zip(pictures, scores, strict=True)
    ]


def main() -> None:
    """Write the file beside this script."""
    corpus, pictures = score(PICTURES)
    golden = {
        "made_by": "tests/metrics/golden/make_meteor.py",
        "versions": {
            "python": platform.python_version(),
            "pycocoevalcap": version("pycocoevalcap"),
            "meteor": "1.5",
        },
        "pictures": pictures,
        "corpus": corpus,
        "ties": score(TIES)[1],
        "normalized": [
            {"text": text, "words": words.split(" ")}
            for text, words in zip(TEXTS, normalize(TEXTS), strict=True)
        ],
    }
    path = Path(__file__).with_name("meteor.json")
    path.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
