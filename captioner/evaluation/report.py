"""One self-contained page about a results file: scores, distributions, best and worst pictures."""

from __future__ import annotations

import base64
import io
import logging
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from captioner.evaluation.evaluate import TOKENIZER, Evaluation
from captioner.evaluation.inputs import resolve_id
from captioner.evaluation.tables import SCALE, scope_lines, why_undefined
from captioner.metrics.score import Score
from captioner.metrics.suite import SCORE_NAMES

NUM_SHOWN = 12
"""Pictures that are shown of the best, and as many of the worst."""

_THUMBNAIL = 360  # pixels of the longer side
_BINS = 24
_WIDTH, _HEIGHT = 300.0, 96.0

_logger = logging.getLogger(__name__)

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#60676f;--line:#dfe3e8;--ground:#f6f7f9;
--card:#fff;--accent:#2f6fbd;--good:#1d7f4e;--bad:#b3402e;--note:#fff6df;--note-line:#e3c77c}
@media(prefers-color-scheme:dark){:root{--ink:#e7eaee;--soft:#9aa3ad;--line:#343a42;
--ground:#15181c;--card:#1d2126;--accent:#7db0ee;--good:#63c596;--bad:#ee8b7a;--note:#322b18;
--note-line:#6d5a26}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:18px;margin:40px 0 12px}
p{margin:0 0 8px}.soft{color:var(--soft)}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px}
.note{background:var(--note);border:1px solid var(--note-line);border-radius:10px;
padding:12px 16px;margin:16px 0}.note ul{margin:6px 0 0;padding-left:20px}
.note li{overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{padding:9px 16px;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td{border-bottom:0}th{font-weight:600;color:var(--soft);font-size:13px}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.range{width:40%;min-width:220px;vertical-align:middle}
td:first-child{white-space:nowrap}
@media(max-width:640px){td.range,th.range{display:none}th,td{padding:9px 12px}}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px}
.facts div{padding:12px 16px}
.facts b{display:block;font-size:20px;font-variant-numeric:tabular-nums}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:12px}
.plots figure{margin:0;padding:12px 16px}figcaption{font-weight:600;margin-bottom:6px}
figcaption span{font-weight:400;color:var(--soft)}
svg{display:block;width:100%;height:auto}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(250px,1fr));gap:12px}
.picture{overflow:hidden;display:flex;flex-direction:column}
.picture img{width:100%;height:190px;object-fit:contain;background:var(--ground);display:block;
border-bottom:1px solid var(--line)}
.picture div{padding:12px 16px}
.picture .caption{font-weight:600;overflow-wrap:anywhere}
.picture .id{color:var(--soft);font-size:12.5px;overflow-wrap:anywhere}
.picture .figures{font-size:12.5px;font-variant-numeric:tabular-nums;margin:6px 0}
.figures b,.figures span{white-space:nowrap}
.good .figures b{color:var(--good)}.bad .figures b{color:var(--bad)}
details{font-size:13px;color:var(--soft)}summary{cursor:pointer}
details ul{margin:4px 0 0;padding-left:18px}details li{overflow-wrap:anywhere}
.empty{font-style:italic;color:var(--soft);font-weight:400}
"""


def build_report(
    evaluation: Evaluation, pictures: Mapping[str, Path] | None = None, num: int = NUM_SHOWN
) -> str:
    """Describe an evaluation as one HTML page that needs nothing else.

    Args:
        evaluation: What is known about the results.
        pictures: Files of the pictures by id, for thumbnails.
        num: How many of the best and of the worst pictures are shown.

    Returns:
        The page.
    """
    inputs = evaluation.inputs
    split = "" if inputs.split is None else f", split {inputs.split}"
    parts = [
        f"<h1>{escape(inputs.results)}</h1>",
        f'<p class="soft">against {escape(inputs.annotations + split)}</p>',
        _notes(evaluation),
        "<h2>Scores</h2>",
        _scores(evaluation),
        "<h2>Captions</h2>",
        _facts(evaluation),
        "<h2>Scores of single pictures</h2>",
        _plots(evaluation),
    ]
    ranking = evaluation.ranking
    if ranking is not None:
        best, worst = _extremes(evaluation.scores[ranking], num)
        title = ranking.replace("_", "-")
        for name, kind, keys in (("Best", "good", best), ("Worst", "bad", worst)):
            if keys:
                parts.append(f"<h2>{name} pictures by {title}</h2>")
                parts.append(_pictures(evaluation, keys, kind, pictures or {}))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(inputs.results)}: caption scores</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def find_pictures(folder: str | Path, image_ids: Sequence[str]) -> dict[str, Path]:
    """The files of pictures, by the ids of the annotations.

    Args:
        folder: Where they are, at any depth.
        image_ids: File names, paths below the folder, or COCO's numbers.

    Raises:
        FileNotFoundError: If there is no such folder, or no picture in it.
    """
    from captioner.data.images import find_images

    known = dict.fromkeys(image_ids)
    found: dict[str, Path] = {}
    root = Path(folder)
    for path in find_images([root]):
        key = resolve_id(path.relative_to(root).as_posix(), known)
        if key not in known and path.stem.isdigit():
            key = str(int(path.stem))
        if key in known:
            found.setdefault(key, path)
    return found


def _notes(evaluation: Evaluation) -> str:
    inputs = evaluation.inputs
    lines = [] if inputs.complete else scope_lines(inputs, evaluation.num_references)[1:]
    lines += [problem.to_text() for problem in inputs.problems]
    lines += [f"{name} is absent: {reason}" for name, reason in evaluation.absent.items()]
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="note"><b>To know before reading the scores</b><ul>{items}</ul></div>'


def _scores(evaluation: Evaluation) -> str:
    level = f"{evaluation.bootstrap.level * 100:g} % interval"
    rows = []
    top = max(
        [1.0, *(i.high for i in evaluation.intervals.values() if i is not None)]
    )  # CIDEr can be above 1
    for name in SCORE_NAMES:
        score = evaluation.scores.get(name)
        if score is None:
            continue
        title = name.replace("_", "-")
        if not score.defined:
            reason = escape(f"undefined: {why_undefined(name, score)}")
            rows.append(f'<tr><td>{title}</td><td colspan="3" class="soft">{reason}</td></tr>')
            continue
        interval = evaluation.intervals.get(name)
        shown, bar = "&ndash;", ""
        if interval is not None:
            shown = f"{interval.low * SCALE:.2f} &ndash; {interval.high * SCALE:.2f}"
            bar = _interval_bar(score.corpus / top, interval.low / top, interval.high / top)
        rows.append(
            f'<tr><td>{title}</td><td class="n"><b>{score.corpus * SCALE:.2f}</b></td>'
            f'<td class="n">{shown}</td><td class="range">{bar}</td></tr>'
        )
    num = len(evaluation.inputs.hypotheses)
    frequencies = f" CIDEr's document frequencies come from {evaluation.frequencies}."
    return (
        '<div class="card scroll"><table><tr><th>Metric</th><th class="n">x100</th>'
        f'<th class="n">{level}</th><th class="range">0 to {top * SCALE:.0f}</th></tr>'
        f"{''.join(rows)}</table></div>"
        f'<p class="soft" style="margin-top:10px">{num:,} pictures, '
        f"{evaluation.num_references:,} references, tokens {TOKENIZER} (coco-caption&#x27;s PTB). "
        f"Intervals from {evaluation.bootstrap.replicates:,} resamples of the pictures."
        f"{escape(frequencies) if 'CIDEr' in evaluation.scores else ''}</p>"
    )


def _interval_bar(value: float, low: float, high: float) -> str:
    low, high, value = (400 * x for x in (low, high, value))
    return (
        '<svg viewBox="0 0 400 12" preserveAspectRatio="none" style="height:12px">'
        '<rect y="5" width="400" height="2" fill="var(--line)"/>'
        f'<rect x="{low:.1f}" y="2" width="{max(high - low, 2):.1f}" height="8" rx="2" '
        'fill="var(--accent)" opacity=".45"/>'
        f'<rect x="{value - 1:.1f}" width="2" height="12" fill="var(--accent)"/></svg>'
    )


def _facts(evaluation: Evaluation) -> str:
    found = evaluation.diversity
    facts = [
        (f"{found.distinct_captions:,}", f"distinct captions of {found.captions:,}"),
        (f"{found.mean_length:.2f}", "words of a caption on average"),
        (f"{found.vocabulary:,}", "distinct words"),
        (f"{found.distinct_1:.4f}", "distinct-1"),
        (f"{found.distinct_2:.4f}", "distinct-2"),
    ]
    if found.in_training is not None:
        facts.append((f"{found.in_training:.1%}", "word for word in the training set"))
    cells = "".join(
        f'<div class="card"><b>{value}</b><span class="soft">{text}</span></div>'
        for value, text in facts
    )
    return f'<div class="facts">{cells}</div>'


def _plots(evaluation: Evaluation) -> str:
    figures = []
    for name, score in evaluation.scores.items():
        values = np.array([v for v in score.per_image.values() if not math.isnan(v)])
        if not len(values):
            continue
        figures.append(
            f'<figure class="card"><figcaption>{name.replace("_", "-")} '
            f"<span>median {np.median(values) * SCALE:.1f}</span></figcaption>"
            f"{_histogram(values)}</figure>"
        )
    return (
        f'<div class="plots">{"".join(figures)}</div><p class="soft" style="margin-top:10px">'
        "How many pictures have which score (x100); the line is the median. BLEU of the set is "
        "computed from summed counts and is not the mean of these.</p>"
    )


def _histogram(values: np.ndarray) -> str:
    top = max(1.0, float(values.max()))
    if top > 1.0:  # CIDEr: whole steps, so that the axis ends at a round number
        top = float(math.ceil(top))
    counts, _ = np.histogram(values, bins=_BINS, range=(0.0, top))
    step = _WIDTH / _BINS
    highest = max(1, int(counts.max()))
    bars = "".join(
        f'<rect x="{i * step + 0.5:.1f}" y="{_HEIGHT - _HEIGHT * count / highest:.1f}" '
        f'width="{step - 1:.1f}" height="{_HEIGHT * count / highest:.1f}" fill="var(--accent)">'
        f"<title>{i * top / _BINS * SCALE:.0f} to {(i + 1) * top / _BINS * SCALE:.0f}: "
        f"{count:,} pictures</title></rect>"
        for i, count in enumerate(counts.tolist())
    )
    middle = float(np.median(values)) / top * _WIDTH
    text = 'font-size="11" fill="var(--soft)"'
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT + 18:.0f}" role="img">'
        f"{bars}"
        f'<line x1="0" x2="{_WIDTH:.0f}" y1="{_HEIGHT}" y2="{_HEIGHT}" stroke="var(--line)"/>'
        f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="0" y2="{_HEIGHT}" stroke="var(--bad)"/>'
        f'<text x="0" y="{_HEIGHT + 14}" {text}>0</text>'
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT + 14}" text-anchor="middle" {text}>'
        f"{top / 2 * SCALE:.0f}</text>"
        f'<text x="{_WIDTH:.0f}" y="{_HEIGHT + 14}" text-anchor="end" {text}>{top * SCALE:.0f}'
        "</text></svg>"
    )


def _extremes(score: Score, num: int) -> tuple[list[str], list[str]]:
    """Ids of the best and of the worst pictures, none of them in both."""
    ordered = sorted(
        (key for key, value in score.per_image.items() if not math.isnan(value)),
        key=lambda key: (-score.per_image[key], str(key)),
    )
    shown = min(num, len(ordered) // 2) or len(ordered)
    best = [str(key) for key in ordered[:shown]]
    worst = [str(key) for key in reversed(ordered[max(shown, len(ordered) - shown) :])]
    return best, worst


def _pictures(
    evaluation: Evaluation, keys: Sequence[str], kind: str, pictures: Mapping[str, Path]
) -> str:
    cards = []
    ranking = evaluation.ranking
    names = [n for n in ("CIDEr", "METEOR", "SPICE", "ROUGE_L", "Bleu_4") if n in evaluation.scores]
    for key in keys:
        path = pictures.get(key)
        image = "" if path is None else _thumbnail(path)
        figures = " · ".join(
            f"<{tag}>{name.replace('_', '-')} {value * SCALE:.1f}</{tag}>"
            for name in names
            for tag in ("b" if name == ranking else "span",)
            if not math.isnan(value := evaluation.scores[name].per_image[key])
        )
        caption = evaluation.inputs.hypotheses[key].strip()
        shown = escape(caption) if caption else '<span class="empty">(empty caption)</span>'
        references = "".join(
            f"<li>{escape(text)}</li>" for text in evaluation.inputs.references[key]
        )
        num = len(evaluation.inputs.references[key])
        cards.append(
            f'<article class="card picture {kind}">{image}<div>'
            f'<p class="caption">{shown}</p><p class="figures">{figures}</p>'
            f"<details><summary>{num} reference{'' if num == 1 else 's'}</summary>"
            f'<ul>{references}</ul></details><p class="id">{escape(key)}</p></div></article>'
        )
    return f'<div class="pictures">{"".join(cards)}</div>'


def _thumbnail(path: Path) -> str:
    """The picture in small as part of the page; nothing where it cannot be read."""
    from captioner.data.images import ImageReadError, read_image

    try:
        image = read_image(path)
    except (ImageReadError, OSError) as error:
        _logger.warning("no thumbnail: %s", error)
        return ""
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="" loading="lazy" src="data:image/jpeg;base64,{data}">'
