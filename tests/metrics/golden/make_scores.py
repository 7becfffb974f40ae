"""Makes scores.json: what pycocoevalcap's Bleu, Rouge and Cider give for made-up captions.

Run with `python tests/metrics/golden/make_scores.py`; needs the extra `metrics`. The captions are
written for this test (none is cut from a data set) and are already tokenised.
"""

import contextlib
import io
import json
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

# (name of the picture, caption to be scored, references)
PICTURES = [
    ("equal", "a yellow kite hangs over the pier", ["a yellow kite hangs over the pier"]),
    (
        "equal-to-one-of-several",
        "two goats stand on a stone wall",
        [
            "two goats stand on a stone wall",
            "a pair of goats look down from a wall",
            "goats on top of an old wall near a barn",
        ],
    ),
    ("nothing-shared", "purple lamps everywhere", ["he reads to his niece", "an open book"]),
    ("empty-caption", "", ["the baker lifts a tray", "a tray of rolls"]),
    ("empty-reference", "a tray of rolls", ["", "the baker lifts a tray of warm rolls"]),
    ("both-empty", "", [""]),
    ("one-word", "goats", ["goats", "two goats", "a stone wall"]),
    ("three-words", "an open book", ["an open book on a desk", "a book"]),
    (
        "repeats-are-clipped",
        "the the the the the the tray",
        ["the baker lifts the tray", "the tray is on the table"],
    ),
    (
        "closest-length-tie",
        "a kite over the sea",
        ["a kite flies over the sea", "kite over the sea", "a red kite flies high over a grey sea"],
    ),
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
        "double-space",
        "a  goat eats",
        ["a  goat eats hay", "a goat  eats", "the goat eats from a bucket"],
    ),
    (
        "other-scripts",
        "ein käfer auf dem blatt 一只 甲虫",
        ["ein käfer sitzt auf dem blatt", "一只 甲虫 在 叶子 上", "жук на листе"],
    ),
    (
        "no-break-space",
        "1\u00a01/2 rolls on a tray",
        ["1\u00a01/2 rolls", "1 1/2 rolls on a tray"],
    ),
    (
        "order-matters",
        "wall stone a on stand goats two",
        ["two goats stand on a stone wall", "goats stand on a wall"],
    ),
    (
        "brackets-stay",
        "a sign -lrb- red -rrb- that says stop",
        ["a red sign says stop", "a stop sign -lrb- red -rrb-"],
    ),
    (
        "same-reference-twice",
        "a warm roll on a plate",
        ["a warm roll on a blue plate", "a warm roll on a blue plate", "bread"],
    ),
]


def score(pictures: list[tuple[str, str, list[str]]]) -> dict[str, object]:
    references = {name: captions for name, _, captions in pictures}
    hypotheses = {name: [caption] for name, caption, _ in pictures}
    with contextlib.redirect_stdout(io.StringIO()):
        bleu, bleu_each = Bleu(4).compute_score(references, hypotheses)
        rouge, rouge_each = Rouge().compute_score(references, hypotheses)
        cider, cider_each = Cider().compute_score(references, hypotheses)
    names = [name for name, _, _ in pictures]

    def entry(corpus: float, each: object) -> dict[str, object]:
        values = [float(value) for value in np.asarray(each)]
        return {"corpus": float(corpus), "per_image": dict(zip(names, values, strict=True))}

    scores = {f"Bleu_{i + 1}": entry(bleu[i], bleu_each[i]) for i in range(4)}
    return {**scores, "ROUGE_L": entry(rouge, rouge_each), "CIDEr": entry(cider, cider_each)}


def main() -> None:
    golden = {
        "made_with": {
            "pycocoevalcap": version("pycocoevalcap"),
            "numpy": version("numpy"),
            "python": platform.python_version(),
        },
        "hypotheses": {name: caption for name, caption, _ in PICTURES},
        "references": {name: captions for name, _, captions in PICTURES},
        "scores": score(PICTURES),
    }
    path = Path(__file__).with_name("scores.json")
    path.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
