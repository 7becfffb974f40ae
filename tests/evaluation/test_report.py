import re
from html.parser import HTMLParser

from PIL import Image

from captioner.evaluation.evaluate import evaluate
from captioner.evaluation.inputs import Entry, match_inputs
from captioner.evaluation.report import build_report, find_pictures
from captioner.metrics.suite import METRICS, Suite

VOID = {"meta", "img"}


class Checker(HTMLParser):
    """Collects what a page holds and makes sure that every element is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(page):
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


def made(num=30, caption="a dog runs on grass"):
    references = {f"{i}.jpg": [f"a dog number {i} runs", "on grass"] for i in range(num)}
    entries = [
        Entry(key, caption if i % 2 else f"a dog number {i} runs", "")
        for i, key in enumerate(references)
    ]
    return evaluate(match_inputs(entries, references), Suite.probe(METRICS))


def test_the_page_needs_nothing_else():
    checker = read(build_report(made()))
    assert checker.links == []
    assert "script" not in checker.tags
    assert "link" not in checker.tags


def test_the_page_shows_scores_distributions_best_and_worst():
    evaluation = made()
    page = build_report(evaluation)
    text = " ".join(read(page).text)
    for name, score in evaluation.scores.items():
        assert f"{score.corpus * 100:.2f}" in text
        assert name.replace("_", "-") in text
    assert "Best pictures by CIDEr" in text
    assert "Worst pictures by CIDEr" in text
    assert page.count("<figure") == len(evaluation.scores)
    assert page.count("<article") == 24
    for word in ("x100", "30 pictures", "60 references", "PTB", "95 % interval"):
        assert word in text


def test_best_and_worst_share_no_picture():
    ids = re.findall(r'class="id">(\S+?)<', build_report(made(5)))
    assert len(ids) == len(set(ids)) == 4


def test_captions_cannot_break_the_page():
    evil = '<script>alert(1)</script> & "quoted" \'\x00'
    references = {f"<i>{i}": [evil, "a cat"] for i in range(3)}
    entries = [Entry(key, evil, "") for key in references]
    page = build_report(evaluate(match_inputs(entries, references), Suite.probe(METRICS)))
    assert "<script>" not in page
    assert "<i>" not in page
    read(page)


def test_thumbnails_are_inside_the_page(tmp_path):
    (tmp_path / "deep").mkdir()
    for i in range(30):
        Image.new("RGB", (640, 480), (i, 0, 0)).save(tmp_path / "deep" / f"{i}.jpg")
    (tmp_path / "deep" / "1.jpg").write_bytes(b"no picture")
    evaluation = made()
    pictures = find_pictures(tmp_path, list(evaluation.inputs.hypotheses))
    assert len(pictures) == 30
    links = read(build_report(evaluation, pictures)).links
    assert len(links) in (23, 24)  # the broken one has none
    assert all(link.startswith("data:image/jpeg;base64,") for link in links)


def test_pictures_are_found_by_cocos_numbers(tmp_path):
    for name in ("000000000042.jpg", "COCO_val2014_000000000043.jpg", "44.png", "other.jpg"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    found = find_pictures(tmp_path, ["42", "43", "44", "45"])
    assert {key: path.name for key, path in found.items()} == {
        "42": "000000000042.jpg",
        "43": "COCO_val2014_000000000043.jpg",
        "44": "44.png",
    }


def test_one_picture_without_any_defined_cider_still_makes_a_page():
    evaluation = made(1)
    assert evaluation.ranking == "ROUGE_L"
    text = " ".join(read(build_report(evaluation)).text)
    assert "undefined" in text
    assert "Best pictures by ROUGE-L" in text
