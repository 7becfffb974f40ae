"""Self-critical sequence training: captions that the model draws, rewarded by their score.

Shapes: M pictures, K captions per picture, N = M * K rows, T input positions, P real positions
of the whole batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.decoding.options import DecodingOptions
from captioner.decoding.processors import build_bans
from captioner.decoding.roll_out import RollOuts, roll_out
from captioner.metrics.bleu import bleu
from captioner.metrics.cider_reward import CiderReward
from captioner.metrics.tokenize_ptb import ptb_tokenize_captions
from captioner.models.interfaces import CaptionDecoder
from captioner.text.tokenizer import detokenize
from captioner.text.vocabulary import Vocabulary
from captioner.types import ImageFeatures, ImageId

Baseline: TypeAlias = Literal["greedy", "mean"]

END = "<eos>"
"""The word that ends references and finished captions where a reward reads them."""


@dataclass(frozen=True)
class SelfCriticalOptions:
    """How a model learns from its own captions.

    Args:
        num_samples: Captions drawn for each picture, at least 2 with the baseline ``mean``.
        baseline: What a caption's reward is compared with: the reward of the ``greedy`` caption,
            or the ``mean`` of the picture's other samples.
        cider: Weight of CIDEr-D (0..10, as ``captioner.metrics`` gives it) in the reward.
        bleu: Weight of BLEU-4 (0..1) in the reward.
        cross_entropy: Weight of the cross-entropy of the references beside the reward; 0 leaves
            it out.
        temperature: Divides the logits before sampling, above 0.
        max_length: Most words of a drawn caption.

    Raises:
        ValueError: A value is out of its range, or nothing is rewarded.

    References:
        Rennie et al. 2017, Self-critical Sequence Training for Image Captioning, sec. 3, eq. 7-8
        (greedy baseline); Luo 2020, A Better Variant of Self-Critical Sequence Training, eq. 6
        (mean of the others).
    """

    num_samples: int = 5
    baseline: Baseline = "mean"
    cider: float = 1.0
    bleu: float = 0.0
    cross_entropy: float = 0.0
    temperature: float = 1.0
    max_length: int = 20

    def __post_init__(self) -> None:
        if self.baseline not in get_args(Baseline):
            raise ValueError(f"baseline must be greedy or mean, got {self.baseline!r}")
        least = 2 if self.baseline == "mean" else 1
        if self.num_samples < least:
            raise ValueError(
                f"num_samples must be at least {least} with the baseline {self.baseline}, got "
                f"{self.num_samples}"
            )
        for name in ("cider", "bleu", "cross_entropy"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.cider + self.bleu == 0.0:
            raise ValueError("cider and bleu are both 0: give one of them a weight to reward")
        if not self.temperature > 0.0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")


class SelfCriticalLosses(NamedTuple):
    """What a self-critical step makes small, and what it saw.

    Attributes:
        loss: Mean over the drawn tokens of - advantage * log-probability, scalar.
        reward: Mean reward of the samples.
        baseline: Mean of what they were compared with.
        length: Mean number of words of the samples.
        finished: Share of the samples that ended themselves.
        distinct: Share of a picture's samples that differ from one another, averaged.
    """

    loss: Tensor
    reward: float
    baseline: float
    length: float
    finished: float
    distinct: float


class SelfCritic:
    """Draws captions, rewards them and says in which direction the decoder is to move.

    Args:
        options: How.
        references: Captions that people wrote of every training picture, as they stand. The
            document frequencies of CIDEr come from all of them.
        vocabulary: The decoder's words.

    Raises:
        ValueError: No references, or references with which CIDEr is undefined.
    """

    def __init__(
        self,
        options: SelfCriticalOptions,
        references: Mapping[ImageId, Sequence[str]],
        vocabulary: Vocabulary,
    ) -> None:
        self.options = options
        self.vocabulary = vocabulary
        tokenized = {
            image_id: ptb_tokenize_captions(captions) for image_id, captions in references.items()
        }
        self._cider = CiderReward(tokenized, end_token=END) if options.cider else None
        self._references = (
            {key: [f"{caption} {END}" for caption in own] for key, own in tokenized.items()}
            if options.bleu
            else {}
        )

    def rewards(
        self, image_ids: Sequence[ImageId], captions: Sequence[str], finished: Sequence[bool]
    ) -> NDArray[np.float64]:
        """The reward of each caption.

        References and captions that ended themselves are read with an end token, so that a
        caption which breaks off earns less than one that is whole.

        Args:
            image_ids: Picture that each caption describes, N of them.
            captions: Captions as people read them.
            finished: Whether each ended itself.

        Returns:
            Weighted sum of CIDEr-D and BLEU-4, (N,).
        """
        words = ptb_tokenize_captions(captions)
        total = np.zeros(len(words))
        if self._cider is not None:
            total += self.options.cider * self._cider(image_ids, words, finished)
        if self.options.bleu:
            ended = [
                f"{caption} {END}" if end else caption
                for caption, end in zip(words, finished, strict=True)
            ]
            fourth = bleu(
                dict(enumerate(ended)),
                {row: self._references[image_id] for row, image_id in enumerate(image_ids)},
            )[3]
            total += self.options.bleu * np.asarray(
                [fourth.per_image[i] for i in range(len(ended))]
            )
        return total

    def losses(
        self, decoder: CaptionDecoder, features: ImageFeatures, image_ids: Sequence[ImageId]
    ) -> SelfCriticalLosses:
        """Draw captions of a batch and compare their rewards.

        All captions are drawn in one batch without gradient, in eval mode; one pass with
        gradient over the samples follows, in the mode in which the decoder is.

        Args:
            decoder: The decoder that learns.
            features: Regions of M pictures, with gradient where the encoder learns too.
            image_ids: Their ids.
        """
        options = self.options
        drawn = roll_out(
            decoder,
            features,
            self.vocabulary.special_ids,
            num_samples=options.num_samples,
            greedy=options.baseline == "greedy",
            max_length=options.max_length,
            temperature=options.temperature,
        )
        texts = self._texts(drawn)
        per_picture = drawn.lengths.shape[1]
        rewards = self.rewards(
            [image_id for image_id in image_ids for _ in range(per_picture)],
            [text for own in texts for text in own],
            drawn.finished.flatten().tolist(),
        ).reshape(len(image_ids), per_picture)
        sampled = rewards[:, : options.num_samples]
        if options.baseline == "greedy":
            baseline = np.broadcast_to(rewards[:, -1:], sampled.shape)
        else:
            others = sampled.sum(axis=1, keepdims=True) - sampled
            baseline = others / (options.num_samples - 1)
        samples = drawn.first(options.num_samples)
        advantage = torch.as_tensor(sampled - baseline, dtype=torch.float32).flatten()
        distinct = [len(set(own[: options.num_samples])) / options.num_samples for own in texts]
        return SelfCriticalLosses(
            policy_gradient_loss(
                decoder, features, samples, advantage, self.vocabulary, options.temperature
            ),
            float(sampled.mean()),
            float(baseline.mean()),
            float(samples.lengths.float().mean()),
            float(samples.finished.float().mean()),
            float(np.mean(distinct)),
        )

    def _texts(self, drawn: RollOuts) -> list[list[str]]:
        """Captions as people read them, K of each of M pictures."""
        return [
            [
                detokenize(self.vocabulary.decode(token_ids[:length]))
                for token_ids, length in zip(own, lengths, strict=True)
            ]
            for own, lengths in zip(drawn.token_ids.tolist(), drawn.lengths.tolist(), strict=True)
        ]


def policy_gradient_loss(
    decoder: CaptionDecoder,
    features: ImageFeatures,
    samples: RollOuts,
    advantage: Tensor,
    vocabulary: Vocabulary,
    temperature: float = 1.0,
) -> Tensor:
    """Mean over drawn tokens of - advantage * log-probability; its gradient is REINFORCE's.

    The end token counts where it was drawn. The probability is that with which a token was drawn:
    at the temperature of the samples, and none for tokens that could not be drawn.

    Args:
        decoder: The decoder that learns.
        features: Regions of M pictures, (M, R, D).
        samples: K captions of each picture.
        advantage: Reward of each caption less its baseline, (M * K,).
        vocabulary: The decoder's words.
        temperature: What the logits were divided by when the samples were drawn.

    Returns:
        Scalar.

    References:
        Rennie et al. 2017, sec. 3.2, eq. 7.
    """
    special = vocabulary.special_ids
    num_pictures, per_picture, longest = samples.token_ids.shape
    device = samples.token_ids.device
    words = samples.token_ids.reshape(-1, longest)
    lengths = samples.lengths.flatten()
    finished = samples.finished.flatten()
    start = torch.full((len(words), 1), special.bos_id, device=device)
    end = torch.full((len(words), 1), special.pad_id, device=device)
    tokens = torch.cat([start, words], dim=1)  # (N, T)
    targets = torch.cat([words, end], dim=1)
    rows = finished.nonzero().squeeze(1)
    targets[rows, lengths[rows]] = special.eos_id
    steps = torch.arange(longest + 1, device=device)
    token_mask = steps < (lengths + finished)[:, None]
    picture = torch.arange(num_pictures, device=device).repeat_interleave(per_picture)
    output = decoder(features, tokens, token_mask, picture, need_attention=False)
    bans = build_bans(DecodingOptions(method="sample"), special)  # as `roll_out` has them
    allowed = bans(output.logits.float(), tokens[:, :0])
    log_probs = (allowed / temperature).log_softmax(dim=1)
    chosen = log_probs.gather(1, targets[token_mask][:, None]).squeeze(1)  # (P,)
    weight = advantage.to(device)[:, None].expand_as(token_mask)[token_mask]
    return -(weight * chosen).mean()
