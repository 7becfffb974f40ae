"""From next-word scores to captions: greedy search, beam search and sampling."""

from captioner.decoding.alternatives import find_alternatives
from captioner.decoding.generate import generate
from captioner.decoding.options import DecodingOptions

__all__ = ["DecodingOptions", "find_alternatives", "generate"]
