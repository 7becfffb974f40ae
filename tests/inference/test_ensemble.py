"""Models that were trained on their own caption together."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from captioner import Captioner
from captioner.inference.checkpoint import export_model, load_model
from captioner.inference.ensemble import join_models, load_ensemble
from captioner.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def models(tiny_models: dict[str, Path]) -> list[Path]:
    return [tiny_models["sat"], tiny_models["transformer"]]


@pytest.fixture(scope="module")
def pair(models: list[Path]) -> Captioner:
    return Captioner.load(models, device="cpu")


@pytest.fixture
def pictures(drawn_pictures: Path) -> list[Path]:
    return sorted(p for p in drawn_pictures.iterdir() if p.suffix in (".png", ".jpg"))[:5]


def forced(model: Path, picture: Path, words: tuple[str, ...]):
    """What a model says of the words of another."""
    return Captioner.load(model, device="cpu").caption(picture, prefix=words)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("options", [{}, {"method": "greedy"}, {"method": "sample", "seed": 3}])
def test_a_model_alone_or_with_itself_is_that_model(
    models: list[Path], pictures: list[Path], copies: int, options: dict
) -> None:
    for model in models:
        found = Captioner.load([model] * copies, device="cpu").captions(pictures, **options)
        expected = Captioner.load(model, device="cpu").captions(pictures, **options)
        for one, other in zip(found, expected, strict=True):
            assert one.words == other.words
            np.testing.assert_allclose(one.word_log_probs, other.word_log_probs, atol=1e-6)
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-5)
            np.testing.assert_allclose(one.attention, other.attention, atol=1e-6)


def test_an_equal_encoder_runs_once(models: list[Path]) -> None:
    assert len(load_ensemble([models[0], models[0]]).encoder.encoders) == 1
    assert len(load_ensemble(models).encoder.encoders) == 2  # their running means differ
    changed = load_model(models[0])
    next(changed.encoder.parameters()).data[0] += 1
    both = join_models([load_model(models[0]), changed], ["a", "b"])
    assert len(both.encoder.encoders) == 2
    assert len(both.views) == 1  # and the picture is prepared once
    older = load_model(models[0])
    del older.config["encoder"]["init_args"]["average_flip"]  # written before there was one
    assert len(join_models([load_model(models[0]), older], ["a", "b"]).encoder.encoders) == 1


def test_a_model_of_both_mirror_images_beside_one_of_the_picture(
    tiny_checkpoint: Path, tmp_path: Path, pictures: list[Path]
) -> None:
    folders = [tmp_path / "plain", tmp_path / "both"]
    for folder, average_flip in zip(folders, (False, True), strict=True):
        export_model(tiny_checkpoint, folder, average_flip=average_flip)
    assert len(load_ensemble(folders).encoder.encoders) == 2
    assert len(load_ensemble(folders).views) == 1
    found = Captioner.load(folders, device="cpu").caption(pictures[0])
    one, other = (
        Captioner.load(folder, device="cpu").caption(pictures[0], prefix=found.words)
        for folder in folders
    )
    mean = np.logaddexp(one.word_log_probs, other.word_log_probs) - np.log(2)
    np.testing.assert_allclose(found.word_log_probs, mean, atol=1e-5)
    assert not np.allclose(one.word_log_probs, other.word_log_probs)


def test_words_have_the_mean_probability_and_the_mean_map(
    pair: Captioner, models: list[Path], pictures: list[Path]
) -> None:
    for options in ({}, {"method": "greedy"}):
        for picture, result in zip(pictures, pair.captions(pictures, **options), strict=True):
            alone = [forced(model, picture, result.words) for model in models]
            length = len(result.words)
            assert length > 0
            mean = np.mean([np.exp(one.word_log_probs[:length]) for one in alone], axis=0)
            np.testing.assert_allclose(np.exp(result.word_log_probs), mean, rtol=1e-4, atol=1e-6)
            maps = np.mean([one.attention[:length] for one in alone], axis=0)
            np.testing.assert_allclose(result.attention, maps, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"method": "greedy"}, {"method": "sample", "seed": 3}])
def test_batch_is_one_by_one(pair: Captioner, pictures: list[Path], options: dict) -> None:
    for picture, one in zip(pictures, pair.captions(pictures, 3, **options), strict=True):
        alone = pair.caption(picture, **options)
        assert one.words == alone.words
        # Convolutions of another batch size add up in another order.
        np.testing.assert_allclose(one.word_log_probs, alone.word_log_probs, rtol=1e-4, atol=1e-5)


def test_models_may_prepare_pictures_in_their_own_way(
    models: list[Path], pictures: list[Path], tmp_path: Path, write_checkpoint
) -> None:
    """Another size, so another grid: the map is that of the first model."""
    other = write_checkpoint(tmp_path / "other.ckpt", "transformer", height=96, width=64)
    for sources in ([models[0], other], [other, models[0]]):
        captioner = Captioner.load(sources, device="cpu")
        result = captioner.caption(pictures[0], layer_attention=True, alternatives=2)
        assert captioner.preprocessing == load_model(sources[0]).preprocessing
        alone = [forced(source, pictures[0], result.words) for source in sources]
        length = len(result.words)
        mean = np.mean([np.exp(one.word_log_probs[:length]) for one in alone], axis=0)
        np.testing.assert_allclose(np.exp(result.word_log_probs), mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(result.attention, alone[0].attention[:length], atol=1e-5)
        assert result.layer_attention.shape == (length, 1, 1, *result.attention.shape[1:])


def test_another_part_of_the_picture_gives_another_map(
    models: list[Path], pictures: list[Path]
) -> None:
    one, other = (load_model(model) for model in models)
    crop = dataclasses.replace(other.preprocessing, resize_mode="center_crop")
    cropped = dataclasses.replace(other, preprocessing=crop)
    assert join_models([one, other], ["a", "b"]).decoder.shown == (0, 1)
    assert join_models([one, cropped], ["a", "b"]).decoder.shown == (0,)
    assert join_models([cropped, cropped], ["a", "b"]).decoder.shown == (0, 1)


def test_the_first_model_gives_the_options_and_all_are_on_record(
    pair: Captioner, models: list[Path]
) -> None:
    assert pair.options == load_model(models[0]).decoding
    assert [member["name"] for member in pair.config["members"]] == [str(m) for m in models]
    assert pair.config["members"][1]["decoder"] == load_model(models[1]).config["decoder"]


def rewrite_vocabulary(source: Path, target: Path, change) -> Path:
    data = torch.load(source, weights_only=True)
    words = list(Vocabulary.from_dict(data["captioner"]["vocabulary"]).words[4:])
    data["captioner"]["vocabulary"] = Vocabulary(change(words)).to_dict()
    torch.save(data, target)
    return target


def test_models_of_other_words_are_refused(tmp_path: Path, write_checkpoint) -> None:
    own = write_checkpoint(tmp_path / "own.ckpt", "sat")
    swapped = rewrite_vocabulary(
        own, tmp_path / "swapped.ckpt", lambda w: [w[0], w[2], w[1], *w[3:]]
    )
    with pytest.raises(
        ValueError, match=r"own\.ckpt and .*swapped\.ckpt differ: entry 5 is '.+' in the one"
    ):
        Captioner.load([own, own, swapped])
    longer = load_model(own)
    longer.vocabulary = Vocabulary([*longer.vocabulary.words[4:], "zebra"])
    with pytest.raises(ValueError, match="a and b differ: they have 15 and 16 entries"):
        join_models([load_model(own), longer], ["a", "b"])


def test_no_model_is_an_error() -> None:
    with pytest.raises(ValueError, match="no model to load"):
        Captioner.load([])
