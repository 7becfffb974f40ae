import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import captioner.inference.captioner as module
from captioner import Captioner
from captioner.data.images import ImageReadError
from captioner.decoding import DecodingOptions
from captioner.inference.options import override_options


@pytest.fixture(scope="module", params=["sat", "transformer"])
def tiny(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Captioner:
    return Captioner.load(tiny_models[request.param], device="cpu")


@pytest.fixture
def pictures(drawn_pictures: Path) -> list[Path]:
    return sorted(p for p in drawn_pictures.iterdir() if p.suffix in (".png", ".jpg"))


def same(one, other) -> None:
    assert one.words == other.words
    assert one.text == other.text
    # Convolutions of another batch size add up in another order.
    np.testing.assert_allclose(one.word_log_probs, other.word_log_probs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one.attention, other.attention, rtol=1e-3, atol=1e-5)
    assert one.crop_box == other.crop_box
    assert one.image_size == other.image_size


def test_result_is_consistent(tiny: Captioner, pictures: list[Path]) -> None:
    result = tiny.caption(pictures[0])
    length = len(result.words)
    assert 0 < length <= 8
    assert result.text == " ".join(result.words)
    assert result.word_log_probs.shape == (length,)
    assert result.word_log_probs.dtype == np.float32
    assert (result.word_log_probs <= 0).all()
    assert result.attention.shape == (length, 8, 12)
    assert (result.attention >= 0).all()
    np.testing.assert_allclose(result.attention.sum((1, 2)), 1, atol=1e-5)
    assert tuple(tiny.vocabulary.decode(result.token_ids)) == result.words
    words_alone = result.word_log_probs.sum()
    if result.finished:
        assert result.log_prob < words_alone
    else:
        assert result.log_prob == pytest.approx(words_alone, rel=1e-5)


def test_models_differ_by_picture(tiny: Captioner, pictures: list[Path]) -> None:
    """Else the tests of order below prove nothing."""
    results = list(tiny.captions(pictures))
    assert len({tuple(r.word_log_probs) for r in results}) > 6


@pytest.mark.parametrize("options", [{}, {"method": "greedy"}, {"method": "sample", "seed": 3}])
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_batch_is_one_by_one_in_order(
    tiny: Captioner, pictures: list[Path], options: dict, batch_size: int
) -> None:
    batched = list(tiny.captions(pictures, batch_size, **options))
    assert len(batched) == len(pictures)
    for picture, result in zip(pictures, batched, strict=True):
        same(result, tiny.caption(picture, **options))


def test_every_kind_of_picture_object(tiny: Captioner, pictures: list[Path]) -> None:
    path = pictures[0]
    wanted = tiny.caption(path)
    same(tiny.caption(str(path)), wanted)
    same(tiny.caption(io.BytesIO(path.read_bytes())), wanted)
    with path.open("rb") as file:
        same(tiny.caption(file), wanted)
    with Image.open(path) as image:
        same(tiny.caption(image), wanted)
        same(tiny.caption(image.convert("RGBA")), wanted)


def test_pillow_images_are_turned_upright(tiny: Captioner, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    Image.new("RGB", (40, 20), "red").save(tmp_path / "x.jpg", exif=exif)
    with Image.open(tmp_path / "x.jpg") as image:
        assert tiny.caption(image).image_size == (20, 40)
    assert tiny.caption(tmp_path / "x.jpg").image_size == (20, 40)


def test_crop_box_is_in_the_pixels_of_the_picture(tiny: Captioner) -> None:
    result = tiny.caption(Image.new("RGB", (300, 50), "green"))
    assert result.image_size == (300, 50)
    assert result.crop_box == (0, 0, 300, 50)  # squeezed: the grid covers the whole


def test_sampling_is_seeded(tiny: Captioner, pictures: list[Path]) -> None:
    one = tiny.caption(pictures[0], method="sample", seed=5, temperature=2.0)
    again = tiny.caption(pictures[0], method="sample", seed=5, temperature=2.0)
    assert one.words == again.words
    drawn = {
        tiny.caption(pictures[0], method="sample", seed=s, temperature=2.0).words for s in range(8)
    }
    assert len(drawn) > 3
    free = {tiny.caption(pictures[0], method="sample", temperature=2.0).words for _ in range(8)}
    assert len(free) > 3


def test_several_captions(tiny: Captioner, pictures: list[Path]) -> None:
    beams, sampled = (
        list(tiny.describe(pictures[:2], num_captions=3, **options))
        for options in ({}, {"method": "sample", "seed": 1, "temperature": 2.0})
    )
    for described in (*beams, *sampled):
        assert len(described.captions) == 3
        assert described.error is None
    for described in beams:
        assert len({c.words for c in described.captions}) == 3
        scores = [c.score for c in described.captions if c.finished]
        assert scores == sorted(scores, reverse=True)
    same(beams[0].captions[0], tiny.caption(pictures[0]))
    assert len({c.words for c in sampled[0].captions}) > 1


def test_layer_attention_on_request(tiny: Captioner, pictures: list[Path]) -> None:
    assert tiny.caption(pictures[0]).layer_attention is None
    result = tiny.caption(pictures[0], layer_attention=True)
    assert result.layer_attention is not None
    length, layers, heads, rows, cols = result.layer_attention.shape
    assert (length, rows, cols) == result.attention.shape
    assert layers * heads >= 1
    np.testing.assert_allclose(result.layer_attention.sum((-1, -2)), 1, atol=1e-4)


def test_an_unreadable_picture_ends_or_is_passed_over(
    tiny: Captioner, pictures: list[Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(pictures[0].read_bytes()[:100])
    several = [pictures[0], bad, tmp_path / "absent.png", pictures[1]]
    with pytest.raises(ImageReadError, match=r"bad\.jpg"):
        list(tiny.captions(several))
    with pytest.raises(FileNotFoundError, match=r"absent\.png"):
        tiny.caption(tmp_path / "absent.png")
    seen = []
    results = list(
        tiny.captions(several, batch_size=3, on_error=lambda p, e: seen.append((p, str(e))))
    )
    assert [picture for picture, _ in seen] == [bad, tmp_path / "absent.png"]
    assert "bad.jpg" in seen[0][1]
    same(results[0], tiny.caption(pictures[0]))
    same(results[1], tiny.caption(pictures[1]))
    items = list(tiny.describe(several))
    assert [item.error is None for item in items] == [True, False, False, True]
    assert [len(item.captions) for item in items] == [1, 0, 0, 1]


def test_pictures_are_taken_as_needed(tiny: Captioner, pictures: list[Path]) -> None:
    taken = []

    def walk():
        for picture in pictures:
            taken.append(picture)
            yield picture

    results = tiny.captions(walk(), batch_size=2)
    next(results)
    assert len(taken) == 2
    assert list(tiny.captions([])) == []


def test_wrong_arguments_are_explained_at_once(tiny: Captioner, pictures: list[Path]) -> None:
    with pytest.raises(ValueError, match=r"unknown decoding option 'beams'.*beam_size"):
        tiny.captions(pictures, beams=3)
    with pytest.raises(ValueError, match="beam_size must be at least 1"):
        tiny.captions(pictures, beam_size=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        tiny.captions(pictures, batch_size=0)
    with pytest.raises(TypeError, match="several pictures"):
        tiny.captions(str(pictures[0]))


def test_overrides() -> None:
    base = DecodingOptions(beam_size=5, length_penalty=0.3)
    assert override_options(base) == base
    assert override_options(base, beam_size=2).length_penalty == 0.3
    assert override_options(DecodingOptions(method="greedy"), beam_size=2).method == "beam"
    sampling = override_options(base, method="sample", top_p=0.5)
    assert override_options(sampling, beam_size=5) == base
    with pytest.raises(ValueError, match="temperature has no effect on method beam"):
        override_options(base, temperature=2.0)


def test_devices(tiny_models: dict[str, Path]) -> None:
    folder = tiny_models["sat"]
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert Captioner.load(folder).device.type == expected
    with pytest.raises(ValueError, match="device must be auto, cpu or cuda, got 'fast'"):
        Captioner.load(folder, device="fast")
    if expected == "cpu":
        with pytest.raises(ValueError, match="there is none that torch can use"):
            Captioner.load(folder, device="cuda")


@pytest.mark.gpu
def test_gpu_and_cpu_agree(tiny_models: dict[str, Path], pictures: list[Path]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for folder in tiny_models.values():
        one = list(Captioner.load(folder, device="cpu").captions(pictures, method="greedy"))
        other = list(Captioner.load(folder, device="cuda").captions(pictures, method="greedy"))
        for a, b in zip(one, other, strict=True):
            assert a.words == b.words
            # TF32 convolutions keep 10 bits.
            np.testing.assert_allclose(a.word_log_probs, b.word_log_probs, atol=2e-2)


def test_the_default_name_is_the_same_everywhere() -> None:
    from captioner import cli

    assert cli.DEFAULT_MODEL == module.DEFAULT_MODEL


def test_a_model_can_be_moved(
    tiny_models: dict[str, Path], tmp_path: Path, pictures: list[Path]
) -> None:
    copy = shutil.copytree(tiny_models["sat"], tmp_path / "elsewhere")
    same(
        Captioner.load(copy).caption(pictures[0]),
        Captioner.load(tiny_models["sat"]).caption(pictures[0]),
    )


def test_alternatives_and_continuing_from_one(tiny: Captioner, pictures: list[Path]) -> None:
    assert tiny.caption(pictures[0]).alternatives is None
    [item] = tiny.describe([pictures[0]], alternatives=5, num_captions=2)
    for result in item.captions:
        assert result.alternatives is not None
        assert len(result.alternatives) == len(result.words) + 1
        for place, word in zip(result.alternatives, result.words, strict=False):
            assert len(place) == 5
            assert word not in {other.word for other in place}
            values = [other.log_prob for other in place]
            assert values == sorted(values, reverse=True)
    result = item.captions[0]
    assert result.alternatives is not None
    other = next(o for o in result.alternatives[1] if o.word != "<eos>")
    prefix = (*result.words[:1], other.word)
    again = tiny.caption(pictures[0], prefix=prefix)
    assert again.words[:2] == prefix
    assert again.word_log_probs[1] == pytest.approx(other.log_prob, abs=1e-4)
    np.testing.assert_allclose(again.attention[:2], result.attention[:2], rtol=1e-3, atol=1e-5)
    ended = tiny.caption(pictures[0], prefix=(*prefix, "<eos>"))
    assert (ended.words, ended.finished) == (prefix, True)


def test_a_wrong_prefix_is_explained(tiny: Captioner, pictures: list[Path]) -> None:
    with pytest.raises(ValueError, match="words that the model knows, got 'zebra'"):
        tiny.caption(pictures[0], prefix=("a", "zebra"))
    with pytest.raises(TypeError, match="prefix must be a list of words"):
        tiny.caption(pictures[0], prefix="a dog")
    with pytest.raises(ValueError, match="alternatives must be at least 0"):
        tiny.caption(pictures[0], alternatives=-1)
