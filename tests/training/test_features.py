"""Encoding a data set once: equal to encoding it on the fly, resumable, honest about failures."""

import pytest
import torch

from captioner.data.feature_store import FeatureStore
from captioner.data.images import read_image
from captioner.data.sources import CaptionTable
from captioner.data.transforms import Preprocessing, find_view
from captioner.models.encoder import CnnEncoder
from captioner.training.features import extract_features
from captioner.types import CaptionRecord

PREPROCESSING = Preprocessing(48, 64)
VIEWS = ("plain", "flip", "crop_flip")


@pytest.fixture(scope="module")
def encoder() -> CnnEncoder:
    torch.manual_seed(0)
    return CnnEncoder("torchvision/resnet18", "layer2")


@pytest.fixture(scope="module")
def records(drawn_pictures) -> list[CaptionRecord]:
    return CaptionTable(drawn_pictures / "captions.csv").records()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_features_equal_the_encoders_own_to_rounding(
    tmp_path, encoder, records, num_workers, capsys
):
    store = extract_features(
        records,
        encoder,
        PREPROCESSING,
        tmp_path,
        views=VIEWS,
        batch_size=5,
        num_workers=num_workers,
    )
    assert store.complete
    assert (store.rows, store.cols, store.feature_dim) == (6, 8, 128)
    assert "12/12" in capsys.readouterr().err
    encoder.eval()
    for record in records[::5]:
        for index, view in enumerate(VIEWS):
            image = PREPROCESSING(read_image(record.path), find_view(view))
            with torch.no_grad():
                expected = encoder(image[None]).grid[0]
            # fp16 keeps 11 bits; the batch size moves float32 sums a little more.
            torch.testing.assert_close(
                store.read(record.image_id, index).float(), expected, rtol=2e-3, atol=1e-3
            )
    store.check(encoder.fingerprint(), PREPROCESSING.to_dict())


def test_bfloat16_is_close_and_an_unknown_precision_is_refused(tmp_path, encoder, records):
    few = records[:2]
    exact, close = (
        extract_features(
            few, encoder, PREPROCESSING, tmp_path / precision, precision=precision, progress=False
        ).read(few[1].image_id)
        for precision in ("32-true", "bf16-mixed")
    )
    assert not torch.equal(exact, close)
    difference = (exact.float() - close.float()).norm() / exact.float().norm()
    assert difference < 0.03  # 8 bits a step, and several steps
    with pytest.raises(ValueError, match=r"precision must be one of 32-true.*'bf16-true'"):
        extract_features(few, encoder, PREPROCESSING, tmp_path / "new", precision="bf16-true")


def test_a_second_call_takes_up_what_is_missing(tmp_path, encoder, records):
    extract_features(records[:4], encoder, PREPROCESSING, tmp_path, progress=False)
    first = FeatureStore.open(tmp_path).read(records[0].image_id).clone()

    class Counting(CnnEncoder):
        seen = 0

        def forward(self, images):
            Counting.seen += len(images)
            return super().forward(images)

    torch.manual_seed(0)
    counting = Counting("torchvision/resnet18", "layer2")
    counting.load_state_dict(encoder.state_dict())
    store = extract_features(records, counting, PREPROCESSING, tmp_path, progress=False)
    assert Counting.seen == 2 * 8  # two views of the eight new pictures
    assert store.complete
    assert torch.equal(store.read(records[0].image_id), first)


def test_unreadable_pictures_are_named_and_the_others_kept(tmp_path, encoder, records):
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    mixed = [*records[:3], CaptionRecord("bad.jpg", bad, ("A caption",), "train"), *records[3:5]]
    with pytest.raises(ValueError, match=r"1 of 6 pictures could not be encoded[\s\S]*bad\.jpg"):
        extract_features(mixed, encoder, PREPROCESSING, tmp_path / "store", progress=False)
    assert FeatureStore.open(tmp_path / "store").missing() == ["bad.jpg"]
    (tmp_path / "bad.jpg").write_bytes(records[0].path.read_bytes())
    store = extract_features(mixed, encoder, PREPROCESSING, tmp_path / "store", progress=False)
    assert store.complete


def test_unknown_view_is_refused_at_once(tmp_path, encoder, records):
    with pytest.raises(ValueError, match="view must be one of"):
        extract_features(records, encoder, PREPROCESSING, tmp_path, views=("plain", "sepia"))
    assert not list(tmp_path.iterdir())
