"""The feature store: what is written comes back, and nothing else is ever served."""

import json
import pickle
import shutil

import pytest
import torch

from captioner.data.feature_store import FeatureStore

SPEC = {
    "encoder": {"backbone": "timm/a", "stage": "b", "weights": None},
    "encoder_fingerprint": "f" * 64,
    "preprocessing": {"height": 8, "width": 8},
    "views": ["plain", "flip"],
    "rows": 2,
    "cols": 3,
    "feature_dim": 4,
}
IDS = [7, "a.jpg", "b.jpg"]


def _features(seed: int) -> torch.Tensor:
    return torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(seed)).half()


def _store(folder, ids=IDS):
    store = FeatureStore.create(folder, **SPEC, image_ids=ids)
    for seed, image_id in enumerate(ids):
        store.write(image_id, _features(seed))
    store.flush()
    return store


def test_what_is_written_comes_back(tmp_path):
    _store(tmp_path)
    store = FeatureStore.open(tmp_path)
    assert store.complete
    assert len(store) == 3
    for seed, image_id in enumerate(IDS):
        for view in (0, 1):
            assert torch.equal(store.read(image_id, view), _features(seed)[view])
    assert torch.equal(store.read("7"), store.read(7))  # ids compare as text
    assert "c.jpg" not in store
    with pytest.raises(KeyError, match=r"no features of 'c\.jpg'; add them with"):
        store.read("c.jpg")
    with pytest.raises(IndexError, match=r"view must be 0\.\.1, got 2"):
        store.read(7, 2)


def test_workers_map_the_file_again(tmp_path):
    store = _store(tmp_path)
    data = pickle.dumps(store)
    assert len(data) < 1000
    assert torch.equal(pickle.loads(data).read("a.jpg", 1), store.read("a.jpg", 1))


def test_a_killed_run_goes_on_and_pictures_can_be_added(tmp_path):
    store = FeatureStore.create(tmp_path, **SPEC, image_ids=IDS)
    store.write("a.jpg", _features(1))
    del store  # killed here
    again = FeatureStore.create(tmp_path, **SPEC, image_ids=[*IDS, "new.jpg"])
    assert again.missing() == [7, "b.jpg", "new.jpg"]
    assert torch.equal(again.read("a.jpg"), _features(1)[0])
    again.write("new.jpg", _features(3))
    assert FeatureStore.open(tmp_path).missing() == [7, "b.jpg"]
    assert not FeatureStore.open(tmp_path).complete


def test_a_kill_while_it_grows_leaves_the_old_store_whole(tmp_path):
    _store(tmp_path)
    with (tmp_path / "features.f16").open("ab") as file:
        file.write(b"\0" * 96)  # grown, but the manifest does not name the new picture yet
    assert torch.equal(FeatureStore.open(tmp_path).read("b.jpg"), _features(2)[0])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder_fingerprint", "0" * 64),
        ("preprocessing", {"height": 9, "width": 8}),
        ("views", ["plain"]),
    ],
)
def test_a_store_of_other_features_is_not_continued(tmp_path, key, value):
    _store(tmp_path)
    with pytest.raises(ValueError, match=f"holds other features: {key} is"):
        FeatureStore.create(tmp_path, **{**SPEC, key: value}, image_ids=IDS)
    assert FeatureStore.open(tmp_path).complete  # and nothing of it is lost


def test_it_serves_only_the_encoder_and_preprocessing_that_made_it(tmp_path):
    store = _store(tmp_path)
    store.check("f" * 64, {"height": 8, "width": 8})
    with pytest.raises(ValueError, match=r"another encoder: timm/a cut at b .*ffffffffffff"):
        store.check("0" * 64, {"height": 8, "width": 8})
    with pytest.raises(ValueError, match="height 8 there, 16 here"):
        store.check("f" * 64, {"height": 16, "width": 8})


def test_the_disk_is_checked_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(OSError, match=r"need 0\.00 GB in .*, 0\.00 GB are free; make room"):
        FeatureStore.create(tmp_path / "store", **SPEC, image_ids=IDS)
    assert not list((tmp_path / "store").iterdir())


def test_bad_stores_and_values_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="make it with `captioner data features`"):
        FeatureStore.open(tmp_path / "nowhere")
    store = _store(tmp_path)
    with pytest.raises(ValueError, match=r"features of 'a.jpg' reach 1e\+06"):
        store.write("a.jpg", torch.full((2, 6, 4), 1e6))
    with pytest.raises(ValueError, match="start with plain"):
        FeatureStore.create(tmp_path / "x", **{**SPEC, "views": ["flip"]}, image_ids=IDS)
    with pytest.raises(ValueError, match="there are no pictures"):
        FeatureStore.create(tmp_path / "x", **SPEC, image_ids=[])
    with (tmp_path / "features.f16").open("r+b") as file:
        file.truncate(10)
    with pytest.raises(ValueError, match=r"should have 288 bytes, has only 10"):
        FeatureStore.open(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(ValueError, match="has format 99, this version reads 1"):
        FeatureStore.open(tmp_path)
