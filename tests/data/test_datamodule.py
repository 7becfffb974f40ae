import logging
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.cli import LightningArgumentParser
from torch.utils.data import DistributedSampler

from captioner.data.datamodule import CaptionDataModule, PreprocessingOptions, read_vocabulary
from captioner.data.datasets import PictureReader
from captioner.data.feature_store import FeatureStore
from captioner.data.sources import CaptionTable
from captioner.data.transforms import PLAIN, Preprocessing, find_view
from captioner.text.vocabulary import Vocabulary
from captioner.types import CaptionRecord

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
SIZE = PreprocessingOptions(height=8, width=10)
PREPROCESSING = SIZE.resolve(MEAN, STD)


@dataclass(frozen=True)
class GivenRecords:
    given: tuple[CaptionRecord, ...]

    def records(self):
        return list(self.given)


def make(source, stage="fit", normalize=True, **options):
    options = {"preprocessing": SIZE, "num_workers": 0, "min_count": 1, "batch_size": 3, **options}
    data = CaptionDataModule(source, **options)
    data.setup(stage)
    if normalize:
        data.set_normalization(MEAN, STD)
    return data


@pytest.fixture
def source(drawn_pictures):
    return CaptionTable(drawn_pictures / "captions.csv")


def make_store(folder: Path, records, views=("plain", "flip"), preprocessing=PREPROCESSING):
    """A store whose "encoder" takes each pixel for a region, so that views can be told apart."""
    store = FeatureStore.create(
        folder,
        encoder={},
        encoder_fingerprint="pixels",
        preprocessing=preprocessing.to_dict(),
        views=views,
        rows=8,
        cols=10,
        feature_dim=3,
        image_ids=[record.image_id for record in records],
    )
    reader = PictureReader(PREPROCESSING)
    for record in records:
        images = [reader(record, view, find_view(view))[0] for view in views]
        store.write(record.image_id, torch.stack(images).flatten(2).transpose(1, 2))
    store.flush()
    return folder


class Recorder(LightningModule):
    """Learns nothing and remembers what it was given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def setup(self, stage):
        self.trainer.datamodule.set_normalization(MEAN, STD)

    def note(self, batch):
        images = None if batch.images is None else batch.images.sum((1, 2, 3)).tolist()
        self.seen.append(
            (self.current_epoch, batch.image_ids, batch.tokens.tolist(), images, torch.rand(()))
        )

    def training_step(self, batch, batch_idx):
        self.note(batch)
        return self.weight * 1.0

    def validation_step(self, batch, batch_idx):
        self.note(batch)

    def test_step(self, batch, batch_idx):
        self.note(batch)

    def predict_step(self, batch, batch_idx):
        self.note(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder, **options):
    return Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False, **options},
    )


# What it offers


def test_attributes_tell_of_the_data(source):
    data = make(source)
    assert len(data.records) == 12
    references = data.references("val")
    assert len(references) == 2
    assert list(references) == [r.image_id for r in source.records() if r.split == "val"]
    assert all(len(captions) == 2 for captions in references.values())
    assert data.preprocessing == PREPROCESSING
    assert data.fingerprint == make(source, "test").fingerprint
    assert data.feature_store is None


def test_the_vocabulary_comes_from_the_training_split_alone(drawn_pictures, source):
    records = source.records()
    secret = CaptionRecord("s", records[0].path, ("zebra zebra zebra",), "val")
    data = make(GivenRecords((*records, secret)))
    assert "zebra" not in data.vocabulary
    assert "circle" in data.vocabulary
    expected = Vocabulary.build([c for r in records if r.split == "train" for c in r.captions], 1)
    assert data.vocabulary == expected
    assert len(make(source, max_size=7).vocabulary) == 7


def test_training_sees_each_picture_once_per_epoch(source):
    loader = make(source).train_dataloader()
    orders = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        orders.append([i for batch in loader for i in batch.image_ids])
    names = [r.image_id for r in source.records() if r.split == "train"]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(names)
    assert orders[0] != orders[1]


def test_training_takes_some_captions_and_evaluation_all(source):
    data = make(source, captions_per_image=1, views=("flip",))
    for batch in data.train_dataloader():
        assert batch.picture.tolist() == list(range(len(batch.image_ids)))
    (batch,) = data.val_dataloader()
    assert batch.picture.tolist() == [0, 0, 1, 1]
    records = [r for r in source.records() if r.split == "val"]
    reader = PictureReader(PREPROCESSING)
    assert torch.equal(batch.images, torch.stack([reader(r, "plain", PLAIN)[0] for r in records]))
    words = data.vocabulary.decode(batch.tokens[0].tolist())
    unknown = data.vocabulary.decode(data.vocabulary.encode_caption(records[0].captions[0]))
    assert words == unknown


def test_prediction_needs_no_captions(source):
    captionless = tuple(CaptionRecord(r.image_id, r.path, (), "test") for r in source.records()[:4])
    data = make(GivenRecords(captionless), "predict", eval_batch_size=4)
    (batch,) = data.predict_dataloader()
    assert len(batch.image_ids) == 4
    assert batch.tokens.shape == (0, 0)
    assert len(make(source, "predict", predict_split="val").predict_dataloader().dataset) == 2


def test_a_source_may_be_evaluated_without_a_training_split(source):
    tests = tuple(r for r in source.records() if r.split == "test")
    data = make(GivenRecords(tests), "test")
    (batch,) = data.test_dataloader()
    assert batch.tokens.shape == (0, 0)
    with pytest.raises(ValueError, match="training split has no captions"):
        _ = data.vocabulary


def test_pictures_and_features_give_the_same_batches(source, tmp_path):
    store = make_store(tmp_path / "store", source.records())
    options = {"views": ("plain", "flip"), "captions_per_image": 1, "seed": 3}
    pictures = make(source, **options)
    features = make(source, features_path=str(store), **options)
    assert features.feature_store is not None
    for loaders in (
        (pictures.train_dataloader(), features.train_dataloader()),
        (pictures.val_dataloader(), features.val_dataloader()),
    ):
        for epoch in range(3):
            for loader in loaders:
                loader.sampler.set_epoch(epoch)
            for mine, theirs in zip(*loaders, strict=True):
                assert mine.image_ids == theirs.image_ids
                assert torch.equal(mine.tokens, theirs.tokens)
                pixels = mine.images.flatten(2).transpose(1, 2)
                # fp16 has 11 significant bits and values are below 4.
                assert torch.allclose(theirs.features.grid, pixels, rtol=0, atol=2e-3)
                assert (theirs.features.rows, theirs.features.cols) == (8, 10)


# Where the vocabulary comes from


@pytest.fixture
def vocabulary():
    return Vocabulary.build(["a zebra is red"], min_count=1)


def test_vocabularies_are_read_from_files_folders_and_checkpoints(tmp_path, vocabulary):
    vocabulary.save(tmp_path / "model" / "vocabulary.json")
    checkpoint = tmp_path / "last.ckpt"
    torch.save(
        {"captioner": {"vocabulary": vocabulary.to_dict()}, "state_dict": {"w": torch.ones(3)}},
        checkpoint,
    )
    for path in (tmp_path / "model", tmp_path / "model" / "vocabulary.json", checkpoint):
        assert read_vocabulary(path) == vocabulary
        assert read_vocabulary(str(path)) == vocabulary


def test_vocabularies_of_shipped_models_are_found_by_name(tmp_path, vocabulary, monkeypatch):
    monkeypatch.setattr("captioner.data.datamodule.resources.files", lambda _: tmp_path)
    vocabulary.save(tmp_path / "pretrained" / "my-model" / "vocabulary.json")
    assert read_vocabulary("my-model") == vocabulary
    with pytest.raises(FileNotFoundError, match=r"your-model is no .*\(my-model\)"):
        read_vocabulary("your-model")


def test_vocabularies_that_are_not_there_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no vocabulary at .*none.json"):
        read_vocabulary(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*none.ckpt"):
        read_vocabulary(tmp_path / "none.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="no checkpoint of `captioner fit`"):
        read_vocabulary(tmp_path / "other.ckpt")


def test_a_given_vocabulary_is_used_as_it_is_or_extended(source, tmp_path, vocabulary):
    path = tmp_path / "vocabulary.json"
    vocabulary.save(path)
    assert make(source, vocabulary_path=path).vocabulary == vocabulary
    extended = make(source, vocabulary_path=path, extend_vocabulary=True).vocabulary
    assert extended.words[: len(vocabulary)] == vocabulary.words
    assert "circle" in extended
    with pytest.raises(ValueError, match="extend_vocabulary needs a vocabulary to extend"):
        CaptionDataModule(source, extend_vocabulary=True)


# What is found before training


def test_missing_pictures_are_counted_and_named(source, tmp_path):
    records = source.records()
    lost = [
        CaptionRecord(f"lost{i}.png", tmp_path / f"lost{i}.png", ("a dog",), split)
        for i, split in enumerate(["train"] * 7 + ["test"])
    ]
    gone = GivenRecords((*records, *lost))
    with pytest.raises(
        ValueError, match=r"of 15 train .*, 7 are missing \(.*lost0.png, .*lost4.png, ...\)"
    ):
        make(gone)
    make(gone, "validate")  # uses none of them
    with pytest.raises(ValueError, match=r"of 3 test .*, 1 are missing \(.*lost7.png\)"):
        make(gone, "test")


def test_broken_pictures_stop_fit_before_it_trains(source, tmp_path):
    short = tmp_path / "short.png"
    whole = source.records()[1].path.read_bytes()
    short.write_bytes(whole[: len(whole) // 2])
    broken = GivenRecords(
        (*source.records(), CaptionRecord("short.png", short, ("a dog",), "train"))
    )
    with pytest.raises(ValueError, match=r"of 9 train .*, 1 cannot be read \(.*short\.png"):
        make(broken)
    make(broken, "test")  # does not use it
    make(broken, check_pictures=False)  # its user knows


def test_pictures_without_captions_are_left_out_and_named(source, tmp_path, caplog):
    bare = [
        CaptionRecord(f"bare-{split}", tmp_path / "none.png", (), split)
        for split in ("train", "val")
    ]
    with caplog.at_level(logging.WARNING):
        data = make(GivenRecords((*source.records(), *bare)))
    assert "of the train pictures, 1 have no captions (bare-train)" in caplog.text
    assert "of the val pictures, 1 have no captions (bare-val)" in caplog.text
    assert len(data.train_dataloader().dataset) == 8
    assert len(data.val_dataloader().dataset) == 2


def test_empty_splits_are_named(source):
    only = {
        s: GivenRecords(tuple(r for r in source.records() if r.split == s))
        for s in ("train", "val")
    }
    with pytest.raises(ValueError, match=r"no pictures with captions in its val split.*limit_val"):
        make(only["train"])
    with pytest.raises(ValueError, match=r"no pictures with captions in its train split.*'val': 2"):
        make(only["val"])
    with pytest.raises(ValueError, match="no pictures in its test split"):
        make(only["val"], "predict")


def test_repeated_pictures_are_named(source):
    with pytest.raises(ValueError, match=r"8 occur more than once"):
        make(GivenRecords(tuple(source.records()) * 2))


def test_captions_that_change_or_go_are_logged(source, caplog):
    data = make(source, max_caption_length=3, long_captions="skip")
    with caplog.at_level(logging.WARNING):
        loader = data.train_dataloader()
    assert "8 training captions of more than 3 words were skipped" in caplog.text
    assert all(len(batch.tokens) == len(batch.image_ids) for batch in loader)
    with caplog.at_level(logging.WARNING):
        make(source, max_caption_length=3).train_dataloader()
    assert "8 training captions were cut to 3 words" in caplog.text
    with pytest.raises(ValueError, match="no training picture has a caption of 1 to 2 words"):
        make(source, max_caption_length=2, long_captions="skip").train_dataloader()


def test_pictures_that_the_store_lacks_are_named(source, tmp_path):
    records = source.records()
    store = make_store(tmp_path / "store", [r for r in records if r.image_id != "red_circle.jpg"])
    with pytest.raises(
        ValueError, match=r"of 8 train .*1 are not in the feature store .*red_circle.jpg.*features`"
    ):
        make(source, features_path=store)


def test_a_store_needs_no_pictures(source, tmp_path):
    records = source.records()
    store = make_store(tmp_path / "store", records)
    moved = tuple(CaptionRecord(r.image_id, Path("gone"), r.captions, r.split) for r in records)
    for batch in make(GivenRecords(moved), features_path=store).train_dataloader():
        assert batch.features is not None


def test_a_store_of_another_preprocessing_is_refused(source, tmp_path):
    store = make_store(tmp_path / "store", source.records())
    for options, message in (
        (PreprocessingOptions(9, 10), "preprocessing.height is 9, but .* was made with 8"),
        (PreprocessingOptions(8, 10, "bilinear"), "interpolation is bilinear, .* with bicubic"),
        (PreprocessingOptions(8, 10, std=(1.0, 1.0, 1.0)), r"preprocessing.std is \(1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            make(source, features_path=store, preprocessing=options)
    data = make(source, features_path=store, normalize=False)
    with pytest.raises(ValueError, match=r"preprocessing.mean is \(0.0, 0.0, 0.0\)"):
        data.set_normalization((0, 0, 0), STD)


def test_a_store_without_the_views_is_refused(source, tmp_path):
    store = make_store(tmp_path / "store", source.records(), views=("plain",))
    with pytest.raises(ValueError, match=r"asks for flip, but .* holds plain only"):
        make(source, features_path=store, views=("plain", "flip"))


def test_a_store_that_is_not_there_is_named(source, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no feature store in .*nowhere"):
        make(source, features_path=tmp_path / "nowhere")


def test_mean_and_std_come_from_the_encoder_unless_set(source):
    data = make(source, normalize=False)
    with pytest.raises(ValueError, match="call set_normalization first"):
        _ = data.preprocessing
    own = PreprocessingOptions(8, 10, mean=(0.0, 0.0, 0.0))
    data = make(source, preprocessing=own)
    assert data.preprocessing == Preprocessing(8, 10, mean=(0.0, 0.0, 0.0), std=STD)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"eval_batch_size": 0}, "eval_batch_size must be at least 1, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"views": ("upside_down",)}, "view must be one of"),
        ({"views": ()}, "views must name at least one"),
        ({"captions_per_image": 0}, "captions_per_image must be at least 1"),
        ({"max_caption_length": 0}, "max_caption_length must be at least 1"),
        ({"long_captions": "drop"}, "long_captions must be cut or skip"),
    ],
)
def test_contradictions_are_refused_before_anything_is_read(options, message):
    with pytest.raises(ValueError, match=message):
        CaptionDataModule(GivenRecords(()), **options)


# With Lightning


def test_the_command_line_builds_one():
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(CaptionDataModule, "data")
    config = parser.parse_args(
        [
            "--data.source=captioner.data.sources.CaptionTable",
            "--data.source.table=t.csv",
            "--data.preprocessing.height=64",
            "--data.views=[plain,flip]",
            "--data.captions_per_image=null",
        ]
    )
    build = getattr(parser, "instantiate", parser.instantiate_classes)
    data = build(config).data
    assert data.source == CaptionTable("t.csv")
    assert data.preprocessing_options == PreprocessingOptions(height=64)
    assert data.views == ("plain", "flip")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_run_continues_as_if_nothing_had_been(source, tmp_path, num_workers):
    def fit(epochs, checkpoint=None, workers=num_workers):
        module = Recorder()
        data = CaptionDataModule(
            source,
            preprocessing=SIZE,
            views=("plain", "flip"),
            batch_size=3,
            captions_per_image=1,
            min_count=1,
            num_workers=workers,
            seed=5,
        )
        run = trainer(tmp_path, max_epochs=epochs, num_sanity_val_steps=0)
        torch.manual_seed(3)
        run.fit(module, datamodule=data, ckpt_path=checkpoint)
        run.save_checkpoint(tmp_path / "last.ckpt")
        return [entry[:4] for entry in module.seen], [entry[4] for entry in module.seen]

    whole, whole_random = fit(4)
    first, first_random = fit(2)
    second, _ = fit(4, tmp_path / "last.ckpt")
    assert first + second == whole
    assert len({tuple(entry[1] for entry in whole if entry[0] == epoch) for epoch in range(4)}) == 4
    # Nothing that the loaders do moves the random numbers of the model.
    assert first_random == whole_random[: len(first)]
    if num_workers:
        assert fit(4, workers=0) == (whole, whole_random)


def test_resuming_on_other_data_is_refused(source, tmp_path):
    options = {"preprocessing": SIZE, "num_workers": 0, "min_count": 1}
    run = trainer(tmp_path, max_epochs=1)
    run.fit(Recorder(), datamodule=CaptionDataModule(source, **options))
    run.save_checkpoint(tmp_path / "last.ckpt")
    torch.load(tmp_path / "last.ckpt", weights_only=True)
    other = CaptionDataModule(GivenRecords(tuple(source.records()[1:])), **options)
    again = trainer(tmp_path, max_epochs=2)
    with pytest.raises(ValueError, match=r"the fingerprint of the data is .*resume with the same"):
        again.fit(Recorder(), datamodule=other, ckpt_path=tmp_path / "last.ckpt")
    # Testing a model on other data is what tests are for.
    trainer(tmp_path).test(
        Recorder(), datamodule=other, ckpt_path=tmp_path / "last.ckpt", verbose=False
    )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_stage_runs_on_its_own_split(source, tmp_path, num_workers):
    data = CaptionDataModule(source, preprocessing=SIZE, min_count=1, num_workers=num_workers)
    run = trainer(tmp_path)
    names = {s: {r.image_id for r in source.records() if r.split == s} for s in ("val", "test")}
    for method, split in (("validate", "val"), ("test", "test"), ("predict", "test")):
        module = Recorder()
        getattr(run, method)(module, datamodule=data)
        seen = [i for entry in module.seen for i in entry[1]]
        assert sorted(seen) == sorted(names[split])


def test_training_without_validation(source, tmp_path):
    training = GivenRecords(tuple(r for r in source.records() if r.split == "train"))
    module = Recorder()
    data = CaptionDataModule(training, preprocessing=SIZE, min_count=1, num_workers=0)
    trainer(tmp_path, max_epochs=1, limit_val_batches=0).fit(module, datamodule=data)
    assert sum(len(entry[1]) for entry in module.seen) == 8


def test_overfitting_some_batches_sees_the_same_items_in_every_epoch(source, tmp_path):
    module = Recorder()
    data = CaptionDataModule(
        source,
        preprocessing=SIZE,
        views=("plain", "flip"),
        captions_per_image=1,
        batch_size=3,
        min_count=1,
        num_workers=0,
    )
    run = trainer(tmp_path, max_epochs=2, overfit_batches=2, num_sanity_val_steps=0)
    with pytest.warns(match="turning off the train dataloader shuffling"):
        run.fit(module, datamodule=data)
    epochs = [[entry[1:4] for entry in module.seen if entry[0] == epoch] for epoch in range(2)]
    assert epochs[0] == epochs[1]
    assert epochs[0][0][0] == tuple(r.image_id for r in source.records()[:3])


def test_lightning_does_not_share_the_pictures_out_a_second_time(source):
    data = make(source)
    for loader in (data.train_dataloader(), data.val_dataloader()):
        # Lightning wraps whatever is not of this class.
        assert isinstance(loader.sampler, DistributedSampler)


def test_processes_share_the_work(source, monkeypatch):
    names = {s: [r.image_id for r in source.records() if r.split == s] for s in ("train", "test")}

    def share(rank, kind):
        data = make(source, "test" if kind == "test" else "fit")
        monkeypatch.setattr(data, "_place", lambda: (rank, 3))
        return [i for batch in getattr(data, f"{kind}_dataloader")() for i in batch.image_ids]

    trained = [share(rank, "train") for rank in range(3)]
    assert [len(part) for part in trained] == [3, 3, 3]
    assert {i for part in trained for i in part} == set(names["train"])
    tested = [share(rank, "test") for rank in range(3)]
    assert [i for part in tested for i in part] == names["test"]


def test_loaders_can_be_pickled_for_their_workers(source):
    dataset = make(source).train_dataloader().dataset
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[1, 0].image, dataset[1, 0].image)
