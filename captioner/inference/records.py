"""A caption as JSON values: what the command prints and what the page's API answers."""

from __future__ import annotations

from captioner.types import CaptionResult


def caption_record(image: str, result: CaptionResult) -> dict[str, object]:
    """One caption as ``captioner caption --format jsonl`` prints it.

    Args:
        image: What the picture is called.
        result: Its caption.

    Returns:
        ``image, caption, words, word_log_probs, log_prob``; log-probabilities have six decimals.
    """
    return {
        "image": image,
        "caption": result.text,
        "words": list(result.words),
        "word_log_probs": [round(float(value), 6) for value in result.word_log_probs],
        "log_prob": round(float(result.log_prob), 6),
    }
