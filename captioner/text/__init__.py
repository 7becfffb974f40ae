"""Words and ids: how a caption becomes tokens, and the vocabulary that numbers them."""

from captioner.text.tokenizer import TOKENIZER_NAME, detokenize, tokenize
from captioner.text.vocabulary import Vocabulary

__all__ = ["TOKENIZER_NAME", "Vocabulary", "detokenize", "tokenize"]
