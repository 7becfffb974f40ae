"""Caption metrics on tokenised strings, equal to coco-caption's; this package stands alone."""

from captioner.metrics.bleu import bleu
from captioner.metrics.cider import cider
from captioner.metrics.cider_reward import CiderReward
from captioner.metrics.rouge import rouge_l
from captioner.metrics.score import ImageKey, Score, check_ids
from captioner.metrics.suite import METRICS, score_captions
from captioner.metrics.tokenize_ptb import (
    PTB_TOKENIZER_NAME,
    ptb_tokenize,
    ptb_tokenize_captions,
    ptb_tokenize_pair,
)

__all__ = [
    "METRICS",
    "PTB_TOKENIZER_NAME",
    "CiderReward",
    "ImageKey",
    "Score",
    "bleu",
    "check_ids",
    "cider",
    "ptb_tokenize",
    "ptb_tokenize_captions",
    "ptb_tokenize_pair",
    "rouge_l",
    "score_captions",
]
