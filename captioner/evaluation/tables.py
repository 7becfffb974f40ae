"""Scores as text tables that say what they mean."""

from __future__ import annotations

from captioner.evaluation.compare import Comparison
from captioner.evaluation.evaluate import TOKENIZER, Bootstrap, Evaluation
from captioner.evaluation.inputs import Inputs
from captioner.metrics.score import Score
from captioner.metrics.suite import SCORE_NAMES

SCALE = 100
"""Tables show scores times this; files hold them unscaled."""

_METRIC_OF = {f"Bleu_{order}": "Bleu" for order in range(1, 5)}


def evaluation_table(evaluation: Evaluation) -> str:
    """The scores of a results file, with all that is needed to understand them."""
    inputs = evaluation.inputs
    lines = [
        f"{inputs.results} against {_annotations(inputs)}",
        *scope_lines(inputs, evaluation.num_references),
        _how(evaluation.bootstrap),
    ]
    if "CIDEr" in evaluation.scores:
        lines.append(f"CIDEr's document frequencies: {evaluation.frequencies}")
    lines += ["", f"{'metric':<9}{'x100':>8}   {_percent(evaluation.bootstrap)} interval"]
    for name in SCORE_NAMES:
        if name in evaluation.scores:
            lines.append(_score_line(evaluation, name))
        elif (reason := evaluation.absent.get(_METRIC_OF.get(name, name))) is not None:
            lines.append(f"{name:<9}  absent: {reason}")
    lines += ["", *diversity_lines(evaluation)]
    return "\n".join(lines)


def scope_lines(inputs: Inputs, num_references: int) -> list[str]:
    """How many pictures and references there are, and whether that is all of them."""
    num = len(inputs.hypotheses)
    lines = [
        f"{num:,} {'picture' if num == 1 else 'pictures'}, "
        f"{num_references:,} {'reference' if num_references == 1 else 'references'}"
    ]
    if not inputs.complete:
        lines.append(
            f"PART OF THE SET: {num:,} of {len(inputs.references):,} pictures are scored "
            "(--allow-missing); do not compare with scores of the whole set"
        )
    return lines


def diversity_lines(evaluation: Evaluation) -> list[str]:
    """How varied the captions are."""
    found = evaluation.diversity
    lines = [
        f"captions  {found.distinct_captions:,} distinct of {found.captions:,}, "
        f"{found.mean_length:.2f} words on average",
        f"words     {found.vocabulary:,} distinct; distinct-1 {found.distinct_1:.4f}, "
        f"distinct-2 {found.distinct_2:.4f}",
    ]
    if found.in_training is not None:
        lines.append(f"copied    {found.in_training:.1%} stand word for word in the training set")
    return lines


def comparison_table(comparison: Comparison) -> str:
    """Two results files beside each other."""
    first, second = comparison.first, comparison.second
    lines = [
        f"A = {first.inputs.results}, B = {second.inputs.results}, against "
        f"{_annotations(first.inputs)}",
        *scope_lines(first.inputs, first.num_references),
        _how(first.bootstrap) + ", drawn for A and B together",
    ]
    if "CIDEr" in first.scores:
        lines.append(f"CIDEr's document frequencies: {first.frequencies}")
    lines += [
        "",
        f"{'metric':<9}{'A x100':>8}{'B x100':>8}{'B - A':>8}   "
        f"{_percent(first.bootstrap) + ' interval':<18}{'p':>7}   B better / worse (pictures)",
    ]
    for name in SCORE_NAMES:
        if name in comparison.differences:
            lines.append(_difference_line(comparison, name))
        elif (reason := first.absent.get(_METRIC_OF.get(name, name))) is not None or (
            reason := second.absent.get(_METRIC_OF.get(name, name))
        ) is not None:
            lines.append(f"{name:<9}  absent: {reason}")
    lines += ["", "B - A is marked * where its interval leaves out 0."]
    return "\n".join(lines)


def why_undefined(name: str, score: Score) -> str:
    """The reason, with the option that helps."""
    reason = score.reason or "no reason is known"
    if name == "CIDEr" and "--df" not in reason:
        reason += " (or take the document frequencies of a larger set: --df FILE)"
    return reason


def _score_line(evaluation: Evaluation, name: str) -> str:
    score, interval = evaluation.scores[name], evaluation.intervals.get(name)
    if not score.defined:
        return f"{name:<9}  undefined: {why_undefined(name, score)}"
    shown = "no interval of one picture"
    if interval is not None:
        shown = f"{interval.low * SCALE:.2f} .. {interval.high * SCALE:.2f}"
    return f"{name:<9}{score.corpus * SCALE:>8.2f}   {shown}"


def _difference_line(comparison: Comparison, name: str) -> str:
    first, second = comparison.first.scores[name], comparison.second.scores[name]
    for score in (first, second):
        if not score.defined:
            return f"{name:<9}  undefined: {why_undefined(name, score)}"
    scores = f"{name:<9}{first.corpus * SCALE:>8.2f}{second.corpus * SCALE:>8.2f}"
    found = comparison.differences[name]
    if found is None:
        change = (second.corpus - first.corpus) * SCALE
        return f"{scores}{change:>+8.2f}   no interval of one picture"
    mark = "*" if found.low > 0 or found.high < 0 else " "
    interval = f"{found.low * SCALE:+.2f} .. {found.high * SCALE:+.2f}"
    return (
        f"{scores}{found.value * SCALE:>+8.2f} {mark} {interval:<18}{found.p_value:>7.3f}   "
        f"{found.better:,} / {found.worse:,}"
    )


def _annotations(inputs: Inputs) -> str:
    return inputs.annotations + ("" if inputs.split is None else f", split {inputs.split}")


def _how(bootstrap: Bootstrap) -> str:
    return (
        f"scores x100 (files hold them unscaled); tokens: {TOKENIZER} (coco-caption's PTB);\n"
        f"intervals from {bootstrap.replicates:,} resamples of the pictures"
    )


def _percent(bootstrap: Bootstrap) -> str:
    return f"{bootstrap.level * 100:g} %"
