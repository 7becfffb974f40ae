"""The module's loss by hand, and what gets a gradient."""

import pytest
import torch
import torch.nn.functional as F

from captioner.models.encoder import CnnEncoder
from captioner.models.lstm_decoder import ShowAttendTellDecoder
from captioner.models.transformer_decoder import TransformerDecoder
from captioner.text.vocabulary import Vocabulary
from captioner.training.module import (
    CaptioningModule,
    check_same_model,
    check_same_optimizer,
    shift_tokens,
)
from captioner.types import CaptionBatch, ImageFeatures

VOCABULARY = Vocabulary.build(["a red dog runs", "a cat"], min_count=1)


def sat(feature_dim: int, size: int) -> ShowAttendTellDecoder:
    return ShowAttendTellDecoder(
        feature_dim, size, hidden_dim=8, embedding_dim=8, attention_dim=4, value_dim=8, dropout=0.0
    )


def transformer(feature_dim: int, size: int) -> TransformerDecoder:
    return TransformerDecoder(
        feature_dim, size, model_dim=8, num_layers=1, num_heads=2, dropout=0.0
    )


def make_module(trainable_from: str | None = None, decoder=sat, **options) -> CaptioningModule:
    def encoder() -> CnnEncoder:
        return CnnEncoder("timm/test_efficientnet", "blocks.2", None, trainable_from)

    module = CaptioningModule(encoder, decoder, **options)
    module.build(VOCABULARY)
    return module.double()


def make_batch(features: bool = False) -> CaptionBatch:
    captions = [VOCABULARY.encode_caption(c) for c in ("a red dog runs", "a dog", "a cat")]
    tokens = torch.zeros(3, 6, dtype=torch.int64)
    for row, ids in zip(tokens, captions, strict=True):
        row[: len(ids) + 2] = torch.tensor([1, *ids, 2])
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    return CaptionBatch(
        tokens=tokens,
        lengths=torch.tensor([6, 4, 4]),
        picture=torch.tensor([0, 0, 1]),
        image_ids=("a", "b"),
        images=None if features else images,
        features=ImageFeatures(torch.rand(2, 16, 32, dtype=torch.float64), 4, 4)
        if features
        else None,
    )


def test_targets_are_the_next_words_and_never_padding() -> None:
    tokens, token_mask, targets = shift_tokens(make_batch())
    assert tokens[:, 0].tolist() == [1, 1, 1]
    assert token_mask.sum(1).tolist() == [5, 3, 3]
    assert (targets != 0).all()
    assert targets.tolist()[4] == 2


@pytest.mark.parametrize("decoder", [sat, transformer])
def test_loss_is_that_of_single_captions_by_hand(decoder) -> None:
    module = make_module(decoder=decoder, label_smoothing=0.1, doubly_stochastic=0.3)
    batch = make_batch()
    losses = module.training_losses(batch)
    grid = module.encoder(batch.images)
    sums, words, penalties = 0.0, 0, []
    for row, length, picture in zip(batch.tokens, batch.lengths, batch.picture, strict=True):
        one = ImageFeatures(grid.grid[picture : picture + 1], grid.rows, grid.cols)
        output = module.caption_decoder(one, row[None, : length - 1])
        sums += F.cross_entropy(
            output.logits, row[1:length], label_smoothing=0.1, reduction="sum"
        ).item()
        words += int(length) - 1
        penalties.append((1 - output.attention.sum(0)).square().sum().item())
    expected = sums / words + 0.3 * sum(penalties) / len(penalties)
    # float64 sums in another order
    assert losses.total.item() == pytest.approx(expected, rel=1e-10)
    assert losses.cross_entropy.item() == pytest.approx(sums / words, rel=1e-10)


@pytest.mark.parametrize("decoder", [sat, transformer])
def test_every_trained_parameter_gets_a_gradient_and_no_other(decoder) -> None:
    module = make_module("blocks.1", decoder=decoder, doubly_stochastic=0.1)
    module.training_losses(make_batch()).total.backward()
    groups = module.parameter_groups()
    assert len(groups) == 2
    trained = {id(p) for group in groups for p in group["params"]}
    for name, parameter in module.named_parameters():
        assert (id(parameter) in trained) == parameter.requires_grad, name
        assert (parameter.grad is not None) == parameter.requires_grad, name
    assert any(not p.requires_grad for p in module.encoder.parameters())


def test_encoder_has_its_own_learning_rate() -> None:
    module = make_module("blocks.1", encoder_lr=1e-6)
    optimizer = module.optimizer_factory(module.parameter_groups())
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 1e-6]
    with pytest.raises(ValueError, match="the encoder is frozen"):
        make_module(None, encoder_lr=1e-6).parameter_groups()


def test_frozen_encoder_does_not_move() -> None:
    module = make_module()
    before = {k: v.clone() for k, v in module.encoder.state_dict().items()}
    optimizer = module.optimizer_factory(module.parameter_groups())
    module.train()
    for _ in range(2):
        optimizer.zero_grad()
        module.training_losses(make_batch()).total.backward()
        optimizer.step()
    for name, tensor in module.encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_ready_made_features_take_the_place_of_pictures() -> None:
    module = make_module()
    batch = make_batch(features=True)
    assert module.encode(batch) is batch.features
    module.training_losses(batch).total.backward()


def test_reference_losses_are_those_of_each_picture() -> None:
    module = make_module().eval()
    batch = make_batch()
    with torch.no_grad():
        losses = module.reference_losses(batch, module.encode(batch))
        plain = make_module(label_smoothing=0.0)
        plain.load_state_dict(module.state_dict())
        mean = plain.eval().training_losses(batch).cross_entropy.item()
    assert [(key, count) for key, _, count in losses] == [("a", 8), ("b", 3)]
    # reference losses are float32 at least, here cast to it
    assert sum(loss for _, loss, _ in losses) / 11 == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\), got 1.0"),
        ({"doubly_stochastic": -1.0}, "doubly_stochastic must not be negative, got -1.0"),
        ({"encoder_lr": 0.0}, "encoder_lr must be above 0, got 0.0"),
    ],
)
def test_module_rejects(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_module(**options)


def test_module_without_parts_says_where_to_get_them() -> None:
    with pytest.raises(ValueError, match=r"no encoder: name one .*initial_weights"):
        CaptioningModule()


def test_a_decoder_that_is_none_is_named() -> None:
    with pytest.raises(TypeError, match=r"makes a Linear, which has no 'init_state'"):
        CaptioningModule(
            lambda: CnnEncoder("timm/test_efficientnet", "blocks.2"), torch.nn.Linear
        ).build(VOCABULARY)


def test_another_model_or_optimizer_is_refused() -> None:
    saved = {"captioner": {"encoder": {"init_args": {"stage": "a", "weights": "package:x"}}}}
    check_same_model(saved, encoder={"init_args": {"stage": "a", "weights": None}})
    with pytest.raises(ValueError, match=r"init_args.stage is 'a' in the checkpoint, 'b' given"):
        check_same_model(saved, encoder={"init_args": {"stage": "b", "weights": None}})
    with pytest.raises(ValueError, match="no 'captioner' entry"):
        check_same_model({})
    stored = [{"lr": 1e-5, "initial_lr": 1e-3, "betas": (0.9, 0.999), "params": [0]}]
    check_same_optimizer([{"lr": 1e-3, "betas": [0.9, 0.999], "params": []}], stored)
    with pytest.raises(ValueError, match=r"lr is 0.001 in the checkpoint, 0.002 given"):
        check_same_optimizer([{"lr": 2e-3, "betas": (0.9, 0.999), "params": []}], stored)
