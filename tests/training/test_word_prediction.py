"""An encoder learns which words go with which picture."""

from pathlib import Path

import pytest
import torch

from captioner.data.datamodule import CaptionDataModule, PreprocessingOptions
from captioner.models.encoder import CnnEncoder
from captioner.text.vocabulary import Vocabulary
from captioner.training.drawn import DrawnPictures
from captioner.training.word_prediction import (
    WordPredictionModule,
    WordPredictionOptions,
    share_of_captions,
)
from captioner.types import CaptionBatch

VOCABULARY = Vocabulary.build(["a red dog runs", "a dog sleeps"], min_count=1)


def make_batch(captions: list[list[str]]) -> CaptionBatch:
    ids = VOCABULARY.special_ids
    rows = [
        [ids.bos_id, *VOCABULARY.encode(caption.split()), ids.eos_id]
        for own in captions
        for caption in own
    ]
    longest = max(map(len, rows))
    return CaptionBatch(
        tokens=torch.tensor([row + [ids.pad_id] * (longest - len(row)) for row in rows]),
        lengths=torch.tensor([len(row) for row in rows]),
        picture=torch.tensor([i for i, own in enumerate(captions) for _ in own]),
        image_ids=tuple(range(len(captions))),
        images=torch.zeros(len(captions), 3, 32, 32),
    )


def test_targets_are_the_share_of_captions_that_use_a_word() -> None:
    batch = make_batch([["a dog runs", "a dog and a dog", "red dog"], ["sleeps"]])
    words = torch.tensor(VOCABULARY.encode(["a", "dog", "red", "runs", "sleeps"]))
    shares = share_of_captions(batch, words, len(VOCABULARY))
    third = 1 / 3
    expected = torch.tensor([[2 * third, 1.0, third, third, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    torch.testing.assert_close(shares, expected)


def test_special_entries_are_no_words() -> None:
    encoder = CnnEncoder("timm/test_efficientnet", "blocks.2", trainable_from="blocks.2")
    module = WordPredictionModule(encoder, VOCABULARY)
    special = VOCABULARY.special_ids
    assert len(module.words) == len(VOCABULARY) - 4
    assert not {special.pad_id, special.bos_id, special.eos_id, special.unk_id} & set(
        module.words.tolist()
    )


def test_only_the_named_part_learns_and_the_pictures_are_told_apart(tmp_path: Path) -> None:
    import pytorch_lightning as pl

    torch.manual_seed(0)
    encoder = CnnEncoder("timm/test_efficientnet", "blocks.2", trainable_from="blocks.1")
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    data = CaptionDataModule(
        DrawnPictures(tmp_path / "drawn", size=64),
        PreprocessingOptions(height=64, width=64),
        views=("random",),
        batch_size=8,
        min_count=1,
        num_workers=0,
        check_pictures=False,
    )
    data.set_normalization(encoder.mean, encoder.std)
    options = WordPredictionOptions(lr=3e-3, head_lr=2e-2, dropout=0.0, warmup_steps=5)
    module = WordPredictionModule(encoder, data.vocabulary, options)
    data.setup("fit")
    alone = module.fit_head(data.train_dataloader())
    assert len(alone) == options.head_epochs
    assert alone[-1] < alone[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    trainer = pl.Trainer(
        max_epochs=40,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    (first,) = trainer.validate(module, data, verbose=False)
    trainer.fit(module, data)
    (last,) = trainer.validate(module, data, verbose=False)
    assert last["val/average_precision"] > max(0.8, first["val/average_precision"] + 0.1)
    assert last["val/loss"] < 0.8 * first["val/loss"]
    moved = {
        name.split(".")[1]
        for name, tensor in encoder.state_dict().items()
        if not torch.equal(tensor, before[name])
    }
    assert any(name.startswith(("blocks_1", "blocks")) for name in moved)
    frozen = [n for n, p in encoder.named_parameters() if not p.requires_grad]
    assert frozen
    assert all(torch.equal(encoder.state_dict()[name], before[name]) for name in frozen)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", 0.0), ("head_lr", -1.0), ("weight_decay", -1.0), ("head_epochs", -1), ("dropout", 1.0)],
)
def test_values_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must"):
        WordPredictionOptions(**{name: value})
