"""Everything that training reads, as Lightning asks for it."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pytorch_lightning import LightningDataModule

from captioner.data.check import check_records
from captioner.data.collate import CaptionCollate
from captioner.data.datasets import (
    CaptionDataset,
    FeatureReader,
    LongCaptions,
    PictureReader,
    ViewReader,
    check_choices,
)
from captioner.data.feature_store import FeatureStore
from captioner.data.samplers import LazyDataLoader, OrderedSampler, ShuffledSampler
from captioner.data.sources import DataSource, data_fingerprint, filter_records, references
from captioner.data.transforms import Interpolation, Preprocessing, ResizeMode
from captioner.text.vocabulary import Vocabulary
from captioner.types import CaptionRecord, ImageId, Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)

_NUM_EXAMPLES = 5


@dataclass(frozen=True)
class PreprocessingOptions:
    """How a picture becomes the input of the encoder.

    Args:
        height: Height of the input in pixels.
        width: Width of the input in pixels.
        interpolation: How pixels are resampled.
        resize_mode: "squeeze" takes the whole picture and gives up its shape; "center_crop"
            keeps its shape and gives up what stands out at two sides.
        mean: Subtracted from each channel after scaling to 0..1; by default the encoder's own.
        std: What each channel is divided by then; by default the encoder's own.
    """

    height: int = 224
    width: int = 224
    interpolation: Interpolation = "bicubic"
    resize_mode: ResizeMode = "squeeze"
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None

    def resolve(
        self, mean: tuple[float, float, float] | None, std: tuple[float, float, float] | None
    ) -> Preprocessing:
        """The full preprocessing, with the encoder's mean and std where none are set here."""
        mean = self.mean if self.mean is not None else mean
        std = self.std if self.std is not None else std
        if mean is None or std is None:
            raise ValueError(
                "the mean and std of the encoder are not known yet: call set_normalization "
                "first, or set preprocessing.mean and preprocessing.std"
            )
        return Preprocessing(
            height=self.height,
            width=self.width,
            mean=mean,
            std=std,
            interpolation=self.interpolation,
            resize_mode=self.resize_mode,
        )


class CaptionDataModule(LightningDataModule):
    """Batches of pictures, or of their cached features, with captions.

    Training batches hold ``batch_size`` pictures with all or ``captions_per_image`` captions of
    each, in an order that follows from ``seed`` and epoch. Evaluation batches hold every
    picture of the split exactly once over all processes, in the plain view, with all of its
    captions. Our samplers share pictures out among processes themselves.

    Before training or evaluation starts, the records that it would use are checked: pictures
    that are missing, or that the feature store lacks, are an error that counts and names them.
    Pictures without captions are left out (``predict`` takes them too), with a warning that
    counts and names them. Before ``fit`` every picture that it would use is read once, too (not
    where a feature store stands for them); ``captioner data check`` does so for a whole data set.

    Args:
        source: Where pictures and captions come from.
        preprocessing: From a picture to the input of the encoder. A feature store made with
            another one is refused.
        features_path: Folder of a feature store to train from; null to read the pictures. The
            batches are the same in both cases, up to float16.
        views: Views that training draws from, one for each picture and epoch: plain, flip,
            crop, crop_flip, and random (half to all of the picture at any place, drawn anew
            each time), for which there is no feature store. A feature store must hold all of
            the others. A mirrored view is not used for a picture whose captions name left or
            right.
        batch_size: Pictures in a training batch of one process.
        eval_batch_size: Pictures in an evaluation batch of one process; null for batch_size.
        captions_per_image: Captions of each picture in a training batch, drawn anew in every
            epoch; a picture that has fewer gives all. null for all captions.
        max_caption_length: Longest training caption in words.
        long_captions: What happens to longer ones. "cut" keeps their first words and ends them
            there, so that no picture is lost; "skip" leaves them out, so that the model never
            sees a sentence which ends early. How many it were is logged.
        vocabulary_path: A vocabulary.json, the name or folder of a model, or a Lightning
            checkpoint (.ckpt), whose vocabulary is used; null builds one from the captions of
            the training split.
        extend_vocabulary: Append the new words of the training split to the vocabulary of
            ``vocabulary_path``; its own words keep their ids.
        min_count: How often a word occurs at least in the training split to be built in or
            appended.
        max_size: Largest size of a vocabulary that is built or appended to; null for any.
        num_workers: Processes that read pictures; 0 reads in the main process.
        check_pictures: Whether ``fit`` reads every picture once before it trains, so that a
            broken one stops it at once and not after hours. False only looks for the files.
        predict_split: Split that ``predict`` captions. Its pictures need no captions.
        seed: Decides order, views and captions of every epoch; ``captioner fit`` sets it to
            ``seed_everything``.
    """

    # A process of an evaluation with fewer pictures than processes has nothing to do.
    allow_zero_length_dataloader_with_multiple_devices = True

    def __init__(
        self,
        source: DataSource,
        preprocessing: PreprocessingOptions = PreprocessingOptions(),
        features_path: str | Path | None = None,
        views: tuple[str, ...] = ("plain",),
        batch_size: int = 16,
        eval_batch_size: int | None = None,
        captions_per_image: int | None = None,
        max_caption_length: int = 50,
        long_captions: LongCaptions = "cut",
        vocabulary_path: str | Path | None = None,
        extend_vocabulary: bool = False,
        min_count: int = 5,
        max_size: int | None = None,
        num_workers: int = 2,
        check_pictures: bool = True,
        predict_split: Split = "test",
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("eval_batch_size", eval_batch_size, 1),
            ("num_workers", num_workers, 0),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        check_choices(captions_per_image, max_caption_length, long_captions, views)
        if extend_vocabulary and vocabulary_path is None:
            raise ValueError(
                "extend_vocabulary needs a vocabulary to extend: set vocabulary_path, or leave "
                "extend_vocabulary out to build one from the training split"
            )
        self.source = source
        self.preprocessing_options = preprocessing
        self.features_path = None if features_path is None else Path(features_path)
        self.views = tuple(views)
        self.batch_size = batch_size
        self.eval_batch_size = batch_size if eval_batch_size is None else eval_batch_size
        self.captions_per_image = captions_per_image
        self.max_caption_length = max_caption_length
        self.long_captions: LongCaptions = long_captions
        self.vocabulary_path = vocabulary_path
        self.extend_vocabulary = extend_vocabulary
        self.min_count = min_count
        self.max_size = max_size
        self.num_workers = num_workers
        self.check_pictures = check_pictures
        self.predict_split: Split = predict_split
        self.seed = seed
        self.feature_store: FeatureStore | None = None
        self._records: list[CaptionRecord] | None = None
        self._fingerprint: str | None = None
        self._vocabulary: Vocabulary | None = None
        self._mean: tuple[float, float, float] | None = None
        self._std: tuple[float, float, float] | None = None

    # What a run may know of its data

    @property
    def records(self) -> list[CaptionRecord]:
        """All records of the source, of every split."""
        if self._records is None:
            self._records = self.source.records()
        return self._records

    @property
    def fingerprint(self) -> str:
        """What tells this data from other data: ids, splits and captions."""
        if self._fingerprint is None:
            self._fingerprint = data_fingerprint(self.records)
        return self._fingerprint

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of the model: given, given and extended, or built from the training split.

        Raises:
            ValueError: It is to be built, but the training split has no captions.
        """
        if self._vocabulary is None:
            self._vocabulary = self._find_vocabulary()
        return self._vocabulary

    @property
    def preprocessing(self) -> Preprocessing:
        """From a picture to the input of the encoder, the encoder's mean and std included.

        Raises:
            ValueError: ``set_normalization`` is still to be called.
        """
        return self.preprocessing_options.resolve(self._mean, self._std)

    def references(self, split: Split) -> dict[ImageId, list[str]]:
        """The captions of every picture of a split, as the source wrote them."""
        return references(filter_records(self.records, split))

    def set_normalization(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Take over the encoder's mean and std; the training module calls it in its ``setup``.

        Values that ``preprocessing`` sets itself stay.

        Args:
            mean: One number a channel, three of them.
            std: One number a channel, three of them.

        Raises:
            ValueError: The feature store was made with others.
        """
        self._mean = (float(mean[0]), float(mean[1]), float(mean[2]))
        self._std = (float(std[0]), float(std[1]), float(std[2]))
        self._check_store_preprocessing()

    # Lightning's hooks

    def setup(self, stage: str) -> None:
        """Read the source, check the records that this stage uses, open the feature store.

        Args:
            stage: fit, validate, test or predict.

        Raises:
            ValueError: Records cannot be used, or the feature store does not fit.
            FileNotFoundError: A file of the source, the vocabulary or the store is missing.
        """
        if self.features_path is not None and self.feature_store is None:
            self.feature_store = FeatureStore.open(self.features_path)
            self._check_store_preprocessing()
            self._check_store_views()
        for split in self._splits_of(stage):
            self._check_records(split, stage)
        if stage == "fit":
            logger.info("vocabulary of %d words", len(self.vocabulary))

    def train_dataloader(self) -> LazyDataLoader:
        """Shuffled batches of the training split."""
        rank, world_size = self._place()
        records = self._used_records("train", with_captions=True)
        dataset = CaptionDataset(
            records,
            self._reader(),
            self.vocabulary,
            captions_per_image=self.captions_per_image,
            max_caption_length=self.max_caption_length,
            long_captions=self.long_captions,
            views=self.views,
            seed=self.seed,
            drop_uncaptioned=True,
        )
        self._log_captions(dataset, num_dropped=len(records) - len(dataset))
        if not len(dataset):
            raise ValueError(
                f"no training picture has a caption of 1 to {self.max_caption_length} words; "
                "raise max_caption_length or set long_captions to cut"
            )
        sampler = ShuffledSampler(len(dataset), seed=self.seed, rank=rank, world_size=world_size)
        return self._loader(dataset, sampler, self.batch_size)

    def val_dataloader(self) -> LazyDataLoader | list[LazyDataLoader]:
        """Ordered batches of the validation split; none where it is empty."""
        if not self._used_records("val", with_captions=True):
            return []
        return self._eval_loader("val")

    def test_dataloader(self) -> LazyDataLoader:
        """Ordered batches of the test split."""
        return self._eval_loader("test")

    def predict_dataloader(self) -> LazyDataLoader:
        """Ordered batches of ``predict_split``, without captions."""
        return self._eval_loader(self.predict_split, with_captions=False)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must share with the broken one."""
        return {"fingerprint": self.fingerprint, "seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse to resume a run on other data or with another seed."""
        if self.trainer is None or self.trainer.state.fn != "fit":
            return
        for name, value in self.state_dict().items():
            if state_dict[name] != value:
                raise ValueError(
                    f"the {name} of the data is {value}, but the run that is to be resumed had "
                    f"{state_dict[name]}; resume with the same data and seed, or start a new run "
                    "from these weights with --model.initial_weights"
                )

    # Parts of setup

    def _splits_of(self, stage: str) -> tuple[Split, ...]:
        if stage == "fit":
            validates = self.trainer is None or self.trainer.limit_val_batches != 0
            return ("train", "val") if validates else ("train",)
        splits: dict[str, Split] = {
            "validate": "val",
            "test": "test",
            "predict": self.predict_split,
        }
        if stage not in splits:
            raise ValueError(f"stage must be fit, validate, test or predict, got {stage!r}")
        return (splits[stage],)

    def _used_records(self, split: Split, *, with_captions: bool) -> list[CaptionRecord]:
        records = filter_records(self.records, split)
        return [r for r in records if r.captions] if with_captions else records

    def _check_records(self, split: Split, stage: str) -> None:
        with_captions = stage != "predict"
        records = self._used_records(split, with_captions=with_captions)
        used = "pictures with captions" if with_captions else "pictures"
        if not records:
            counts = Counter(record.split for record in self.records)
            raise ValueError(
                f"the source has no {used} in its {split} split, of "
                f"{dict(counts) or 'no'} pictures in all; give it some"
                + (
                    ", or train without validation: --trainer.limit_val_batches 0"
                    if split == "val"
                    else ""
                )
            )
        unused = _describe(
            "have no captions",
            [r.image_id for r in filter_records(self.records, split) if not r.captions],
        )
        if with_captions and unused:
            logger.warning("of the %s pictures, %s; they are left out", split, unused)
        times = Counter(str(record.image_id) for record in records)
        repeated = [name for name, count in times.items() if count > 1]
        advice = "keep each picture once"
        found = _describe("occur more than once", repeated)
        if not found and self.feature_store is None:
            # One process reads them all; the others learn of a failure as of any other.
            first = self.trainer is None or self.trainer.is_global_zero
            report = check_records(
                records,
                workers=self.num_workers,
                read_pictures=stage == "fit" and self.check_pictures and first,
            )
            found = "; ".join(
                filter(
                    None,
                    (
                        _describe("are missing", [p.path for p in report.missing]),
                        _describe(
                            "cannot be read",
                            [f"{p.path} ({p.reason})" for p in report.unreadable],
                        ),
                    ),
                )
            )
            advice = "`captioner data check` lists all problems of a data set"
        elif not found:
            store = self.feature_store
            absent = [r.image_id for r in records if store is not None and r.image_id not in store]
            found = _describe(f"are not in the feature store {self.features_path}", absent)
            advice = "run its `captioner data features` command again to add them"
        if found:
            raise ValueError(f"of {len(records):,} {split} {used}, {found}; {advice}")

    def _check_store_preprocessing(self) -> None:
        if self.feature_store is None:
            return
        made_with = Preprocessing.from_dict(self.feature_store.manifest["preprocessing"])
        for field in dataclasses.fields(self.preprocessing_options):
            wanted = getattr(self.preprocessing_options, field.name)
            if field.name in ("mean", "std") and wanted is None:
                wanted = getattr(self, f"_{field.name}")
            if wanted is None:
                continue
            stored = getattr(made_with, field.name)
            wanted = tuple(wanted) if isinstance(wanted, list) else wanted
            if stored != wanted:
                raise ValueError(
                    f"preprocessing.{field.name} is {wanted}, but the feature store "
                    f"{self.features_path} was made with {stored}; set it to that, or make a "
                    "store of your own with `captioner data features`"
                )

    def _check_store_views(self) -> None:
        assert self.feature_store is not None
        absent = [view for view in self.views if view not in self.feature_store.views]
        if absent:
            raise ValueError(
                f"views asks for {', '.join(absent)}, but the feature store {self.features_path} "
                f"holds {', '.join(self.feature_store.views)} only; leave them out, or make a "
                "store with them: `captioner data features`"
            )

    def _find_vocabulary(self) -> Vocabulary:
        captions = [c for r in filter_records(self.records, "train") for c in r.captions]
        if self.vocabulary_path is None:
            if not captions:
                raise ValueError(
                    "the training split has no captions to build a vocabulary from; set "
                    "vocabulary_path to a vocabulary.json, a model or a checkpoint"
                )
            return Vocabulary.build(captions, min_count=self.min_count, max_size=self.max_size)
        vocabulary = read_vocabulary(self.vocabulary_path)
        if self.extend_vocabulary:
            size = len(vocabulary)
            vocabulary = vocabulary.extended(
                captions, min_count=self.min_count, max_size=self.max_size
            )
            logger.info(
                "%d new words join the %d of %s", len(vocabulary) - size, size, self.vocabulary_path
            )
        return vocabulary

    # Parts of the loaders

    def _reader(self) -> ViewReader:
        if self.feature_store is not None:
            return FeatureReader(self.feature_store)
        return PictureReader(self.preprocessing)

    def _eval_loader(self, split: Split, *, with_captions: bool = True) -> LazyDataLoader:
        rank, world_size = self._place()
        vocabulary = self.vocabulary if with_captions and self._has_vocabulary() else None
        dataset = CaptionDataset(
            self._used_records(split, with_captions=with_captions),
            self._reader(),
            vocabulary,
            max_caption_length=self.max_caption_length,
        )
        sampler = OrderedSampler(len(dataset), rank=rank, world_size=world_size)
        return self._loader(dataset, sampler, self.eval_batch_size)

    def _loader(
        self, dataset: CaptionDataset, sampler: ShuffledSampler | OrderedSampler, batch_size: int
    ) -> LazyDataLoader:
        grid_size: tuple[int, int] | None = None
        if self.feature_store is not None:
            grid_size = (self.feature_store.rows, self.feature_store.cols)
        return LazyDataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=CaptionCollate(grid_size=grid_size),
            pin_memory=self.trainer is not None
            and self.trainer.strategy.root_device.type == "cuda",
            persistent_workers=self.num_workers > 0,
            # Each pass draws a seed for its workers. Drawn from the global generator, it would
            # move dropout when the number of passes differs, as it does after a resume.
            generator=torch.Generator().manual_seed(self.seed),
        )

    def _place(self) -> tuple[int, int]:
        if self.trainer is None:
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size

    def _has_vocabulary(self) -> bool:
        # A source that is only evaluated may have no training split to build one from. Then
        # batches carry no captions: references are text and need no vocabulary.
        return self.vocabulary_path is not None or any(
            record.captions for record in filter_records(self.records, "train")
        )

    def _log_captions(self, dataset: CaptionDataset, num_dropped: int) -> None:
        captions = dataset.captions
        assert captions is not None
        logger.info("training on %d captions of %d pictures", len(captions), len(dataset))
        for count, what in (
            (captions.num_cut, f"captions were cut to {self.max_caption_length} words"),
            (
                captions.num_skipped,
                f"captions of more than {self.max_caption_length} words were skipped",
            ),
            (captions.num_empty, "captions hold no word and were left out"),
            (num_dropped, "pictures have no usable caption and were left out"),
        ):
            if count:
                logger.warning("%d training %s", count, what)


def read_vocabulary(source: str | Path) -> Vocabulary:
    """The vocabulary of a file, a model or a checkpoint.

    Args:
        source: A vocabulary.json, the folder of a model, the name of a model that ships with
            this package, or a Lightning checkpoint (.ckpt).

    Raises:
        FileNotFoundError: There is nothing of that name.
        ValueError: The checkpoint is not one of ours.
    """
    path = Path(source)
    if path.suffix == ".ckpt":
        if not path.is_file():
            raise FileNotFoundError(f"vocabulary_path: no checkpoint at {path}")
        # Memory-mapped, so that the weights are never read.
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if "captioner" not in checkpoint:
            raise ValueError(
                f"vocabulary_path: {path} is no checkpoint of `captioner fit`: it has no entry "
                "'captioner' that holds the vocabulary"
            )
        return Vocabulary.from_dict(checkpoint["captioner"]["vocabulary"])
    shipped = Path(str(resources.files("captioner"))) / "pretrained"
    if not path.exists() and path.name == str(source) and (shipped / path).is_dir():
        path = shipped / path
    if path.is_dir():
        path = path / "vocabulary.json"
    if not path.is_file() and path.suffix != ".json":
        names = sorted(folder.name for folder in shipped.glob("*") if folder.is_dir())
        raise FileNotFoundError(
            f"vocabulary_path: {source} is no vocabulary.json, no checkpoint, no folder of a model "
            f"and no name of a model ({', '.join(names) or 'none ships'}); build a vocabulary with "
            "`captioner data vocabulary`"
        )
    return Vocabulary.load(path)


def _describe(problem: str, examples: Iterable[object]) -> str:
    """For instance "3 are missing (a.jpg, b.jpg, c.jpg)"; empty without examples."""
    names = [str(example) for example in examples]
    if not names:
        return ""
    shown = ", ".join(names[:_NUM_EXAMPLES]) + (", ..." if len(names) > _NUM_EXAMPLES else "")
    return f"{len(names):,} {problem} ({shown})"
