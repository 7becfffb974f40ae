"""Makes tokens.json: what pycocoevalcap's PTBTokenizer gives for made captions.

Run with `python tests/metrics/golden/make_tokens.py`; needs the extra `metrics` and Java. The tool
reads all captions as one text and looks from the end of one into the next, so each is followed by a
caption that begins as captions do.
"""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_captions import WRITTEN, made_captions

FOLLOWER = "The next picture"


def package_tokens(captions: list[str]) -> list[list[str]]:
    """Tokens of each caption, as the package's scorers split them after its tokenizer."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    # The tool reads and writes in Java's default encoding, which hangs on the locale.
    os.environ["JAVA_TOOL_OPTIONS"] = "-Dfile.encoding=UTF-8"
    rows = {i: [{"caption": caption}, {"caption": FOLLOWER}] for i, caption in enumerate(captions)}
    tokenised = PTBTokenizer().tokenize(rows)
    assert all(tokenised[i][1] == "the next picture" for i in rows), "captions have moved"
    return [[token for token in tokenised[i][0].split(" ") if token] for i in rows]


def main() -> None:
    captions = WRITTEN + made_captions(600, seed=2017)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    golden = {
        "made_with": {
            "pycocoevalcap": version("pycocoevalcap"),
            "java": java.splitlines()[0],
            "python": platform.python_version(),
        },
        "captions": [
            [caption, tokens]
            for caption, tokens in zip(captions, package_tokens(captions), strict=True)
        ],
    }
    path = Path(__file__).with_name("tokens.json")
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in golden["captions"])
    header = json.dumps(golden["made_with"])
    path.write_text(
        f'{{\n "made_with": {header},\n "captions": [\n{lines}\n ]\n}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
