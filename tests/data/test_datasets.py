import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from captioner.data.collate import CaptionCollate
from captioner.data.datasets import CaptionDataset, EncodedCaptions, FeatureReader, PictureReader
from captioner.data.feature_store import FeatureStore
from captioner.data.images import ImageReadError
from captioner.data.samplers import ShuffledSampler
from captioner.data.transforms import VIEWS, Preprocessing
from captioner.text.vocabulary import Vocabulary
from captioner.types import CaptionRecord

PREPROCESSING = Preprocessing(height=8, width=10, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
CAPTIONS = tuple(f"{word} dog runs" for word in ("one", "two", "three", "four", "five"))
VOCABULARY = Vocabulary.build(["one two three four five dog runs left the"], min_count=1)


@pytest.fixture
def records(drawn_pictures):
    paths = sorted(p for p in drawn_pictures.iterdir() if p.suffix in (".png", ".jpg"))
    return [CaptionRecord(path.name, path, CAPTIONS, "train") for path in paths]


def make_store(folder: Path, records, views) -> FeatureStore:
    """A store whose "encoder" takes each pixel for a region, so that views can be told apart."""
    store = FeatureStore.create(
        folder,
        encoder={},
        encoder_fingerprint="pixels",
        preprocessing=PREPROCESSING.to_dict(),
        views=views,
        rows=8,
        cols=10,
        feature_dim=3,
        image_ids=[record.image_id for record in records],
    )
    reader = PictureReader(PREPROCESSING)
    for record in records:
        images = [reader(record, view, VIEWS[view])[0] for view in views]
        store.write(record.image_id, torch.stack(images).flatten(2).transpose(1, 2))
    store.flush()
    return FeatureStore.open(folder)


def words_of(item):
    return [VOCABULARY.decode(caption.tolist()) for caption in item.captions]


def same(item, other):
    return (
        item.image_id == other.image_id
        and words_of(item) == words_of(other)
        and torch.equal(item.image, other.image)
    )


def test_all_captions_come_in_their_order(records):
    item = CaptionDataset(records, PictureReader(PREPROCESSING), VOCABULARY)[0, 3]
    assert words_of(item) == [caption.split() for caption in CAPTIONS]
    assert item.captions[0][0] == VOCABULARY.special_ids.bos_id
    assert item.captions[0][-1] == VOCABULARY.special_ids.eos_id
    assert item.image is not None
    assert item.image.shape == (3, 8, 10)
    assert item.image_id == records[3].image_id


def test_some_captions_are_drawn_anew_in_each_epoch_and_never_twice(records):
    data = CaptionDataset(records, PictureReader(PREPROCESSING), VOCABULARY, captions_per_image=2)
    counts = Counter()
    for epoch in range(60):
        words = [" ".join(w) for w in words_of(data[epoch, 0])]
        assert len(set(words)) == 2
        counts.update(words)
    assert set(counts) == set(CAPTIONS)
    # 24 expected of each; 10 is more than three standard deviations (3.8) below.
    assert min(counts.values()) > 10


def test_a_picture_with_fewer_captions_gives_them_all(records):
    few = [CaptionRecord("a", records[0].path, CAPTIONS[:2], "train")]
    data = CaptionDataset(few, PictureReader(PREPROCESSING), VOCABULARY, captions_per_image=4)
    assert len(data[0, 0].captions) == 2


def test_views_are_drawn_evenly(records):
    data = CaptionDataset(
        records, PictureReader(PREPROCESSING), VOCABULARY, views=("plain", "flip")
    )
    plain = CaptionDataset(records, PictureReader(PREPROCESSING))
    flipped = 0
    for epoch in range(100):
        image, usual = data[epoch, 1].image, plain[epoch, 1].image
        assert torch.equal(image, usual) or torch.allclose(image, usual.flip(2))
        flipped += not torch.equal(image, usual)
    assert 30 < flipped < 70  # 50 expected, standard deviation 5


@pytest.mark.parametrize("side", ["a dog to the left", "The dog's RIGHT ear."])
def test_a_mirrored_view_never_meets_captions_that_name_a_side(records, side):
    sided = [CaptionRecord("a", records[1].path, (*CAPTIONS, side), "train")]
    plain = CaptionDataset(sided, PictureReader(PREPROCESSING))[0, 0].image
    data = CaptionDataset(
        sided, PictureReader(PREPROCESSING), VOCABULARY, views=("flip",), captions_per_image=1
    )
    for epoch in range(10):
        assert torch.equal(data[epoch, 0].image, plain)


def test_random_views_are_new_in_every_epoch_and_mirror_only_what_stays_true(records):
    def make(captions):
        sided = [CaptionRecord("a", records[1].path, captions, "train")]
        return CaptionDataset(
            sided, PictureReader(PREPROCESSING), VOCABULARY, views=("random",), seed=7
        )

    plain, sided = make(CAPTIONS), make((*CAPTIONS, "a dog on the left"))
    seen = [plain[epoch, 0].image for epoch in range(20)]
    assert all(not torch.equal(a, b) for a, b in pairwise(seen))
    mirrored = 0
    for epoch, image in enumerate(seen):
        as_it_is = sided[epoch, 0].image
        assert torch.allclose(image, as_it_is) or torch.allclose(image, as_it_is.flip(2))
        mirrored += not torch.allclose(image, as_it_is)
    assert 3 < mirrored < 17  # 10 expected, deviation 2.2


def test_items_follow_from_seed_epoch_and_index_alone(records):
    def make(seed):
        return CaptionDataset(
            records,
            PictureReader(PREPROCESSING),
            VOCABULARY,
            captions_per_image=2,
            views=(*VIEWS, "random"),
            seed=seed,
        )

    data = make(4)
    before = [data[2, i] for i in range(len(data))]
    torch.manual_seed(99)
    for i in reversed(range(len(data))):
        assert same(make(4)[2, i], before[i])
    assert not all(same(make(5)[2, i], before[i]) for i in range(len(data)))
    assert not all(same(data[3, i], before[i]) for i in range(len(data)))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_change_nothing(records, num_workers):
    data = CaptionDataset(
        records,
        PictureReader(PREPROCESSING),
        VOCABULARY,
        captions_per_image=2,
        views=("plain", "flip", "crop"),
    )

    def batches(workers):
        sampler = ShuffledSampler(len(data), seed=1)
        sampler.set_epoch(3)
        return list(
            DataLoader(
                data,
                batch_size=5,
                sampler=sampler,
                num_workers=workers,
                collate_fn=CaptionCollate(),
            )
        )

    for mine, theirs in zip(batches(num_workers), batches(0), strict=True):
        assert mine.image_ids == theirs.image_ids
        assert torch.equal(mine.tokens, theirs.tokens)
        assert torch.equal(mine.images, theirs.images)


def test_a_store_gives_the_views_and_captions_that_pictures_give(records, tmp_path):
    views = ("plain", "flip", "crop")
    records = [*records[:5], CaptionRecord("side", records[5].path, ("the left dog",), "train")]
    store = make_store(tmp_path / "store", records, views)
    options = {"captions_per_image": 2, "views": ("flip", "crop", "plain"), "seed": 8}
    pictures = CaptionDataset(records, PictureReader(PREPROCESSING), VOCABULARY, **options)
    features = CaptionDataset(records, FeatureReader(store), VOCABULARY, **options)
    for epoch in range(6):
        for i in range(len(records)):
            picture, feature = pictures[epoch, i], features[epoch, i]
            assert words_of(picture) == words_of(feature)
            assert feature.image is None
            expected = picture.image.flatten(1).T
            # fp16 has 11 significant bits and values are below 4.
            assert torch.allclose(feature.grid.float(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", ["pictures", "features"])
def test_data_sets_can_be_pickled(records, tmp_path, kind):
    reader = (
        PictureReader(PREPROCESSING)
        if kind == "pictures"
        else FeatureReader(make_store(tmp_path / "store", records, ("plain", "flip")))
    )
    data = CaptionDataset(records, reader, VOCABULARY, views=("plain", "flip"))
    copy = pickle.loads(pickle.dumps(data))
    mine, theirs = data[1, 2], copy[1, 2]
    assert words_of(mine) == words_of(theirs)
    tensor = "image" if kind == "pictures" else "grid"
    assert torch.equal(getattr(mine, tensor), getattr(theirs, tensor))


def test_long_captions_are_cut_or_skipped():
    def encode(long_captions):
        record = CaptionRecord("a", Path("a"), ("one two three", "four five", "..."), "train")
        captions = EncodedCaptions.encode([record], VOCABULARY, 2, long_captions)
        words = [
            VOCABULARY.decode(captions.caption(0, i).tolist())
            for i in range(captions.num_captions(0))
        ]
        assert all(
            captions.caption(0, i)[-1] == VOCABULARY.special_ids.eos_id for i in range(len(words))
        )
        assert captions.num_empty == 1
        return words, captions.num_cut, captions.num_skipped

    assert encode("cut") == ([["one", "two"], ["four", "five"]], 1, 0)
    assert encode("skip") == ([["four", "five"]], 0, 1)


def test_training_leaves_out_pictures_without_usable_captions(records):
    mixed = [
        CaptionRecord("a", records[0].path, ("one two three four",), "train"),
        CaptionRecord("b", records[1].path, ("one", "one two three"), "train"),
        CaptionRecord("c", records[2].path, (), "train"),
        CaptionRecord("d", records[3].path, ("five",), "train"),
    ]
    options = {"max_caption_length": 2, "long_captions": "skip"}
    reader = PictureReader(PREPROCESSING)
    data = CaptionDataset(mixed, reader, VOCABULARY, drop_uncaptioned=True, **options)
    assert [data[0, i].image_id for i in range(len(data))] == ["b", "d"]
    assert [words_of(data[0, i]) for i in range(len(data))] == [[["one"]], [["five"]]]
    everything = CaptionDataset(mixed, reader, VOCABULARY, **options)
    assert [len(everything[0, i].captions) for i in range(4)] == [0, 1, 0, 1]


def test_pictures_to_be_captioned_have_no_captions(records):
    assert CaptionDataset(records, PictureReader(PREPROCESSING))[0, 0].captions == ()


def test_a_bare_index_is_epoch_0(records):
    data = CaptionDataset(records, PictureReader(PREPROCESSING), VOCABULARY, captions_per_image=1)
    assert same(data[5], data[0, 5])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_picture_that_cannot_be_read_is_named(tmp_path, num_workers):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    data = CaptionDataset(
        [CaptionRecord("id-7", broken, (), "train")], PictureReader(PREPROCESSING)
    )
    loader = DataLoader(
        data,
        sampler=ShuffledSampler(1),
        num_workers=num_workers,
        collate_fn=CaptionCollate(),
    )
    with pytest.raises(ImageReadError, match=r"broken\.jpg"):
        next(iter(loader))


def test_an_unforeseen_error_names_the_picture_too(records):
    def reader(record, name, view):
        raise OSError("stale file handle")

    loader = DataLoader(
        CaptionDataset([CaptionRecord("id-7", records[0].path, (), "train")], reader),
        sampler=ShuffledSampler(1),
        num_workers=1,
        collate_fn=CaptionCollate(),
    )
    with pytest.raises(OSError, match="while reading picture id-7"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"captions_per_image": 0}, "captions_per_image must be at least 1"),
        ({"max_caption_length": 0}, "max_caption_length must be at least 1, got 0"),
        ({"long_captions": "drop"}, "long_captions must be cut or skip, got 'drop'"),
        ({"views": ()}, "views must name at least one view"),
        ({"views": ("plain", "upside_down")}, "view must be one of"),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CaptionDataset([], PictureReader(PREPROCESSING), VOCABULARY, **options)
