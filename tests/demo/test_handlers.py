import base64
import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner import Captioner
from captioner.demo import handlers
from captioner.demo.handlers import (
    DemoError,
    TimeLimit,
    View,
    api_answer,
    colormap_tables,
    decoding_options,
    describe_model,
    describe_models,
    describe_picture,
    export_caption,
    find_captioner,
    font_note,
    load_captioners,
    read_card,
    read_upload,
    to_download,
    view_nothing,
    view_picture,
)
from captioner.inference import checkpoint


@pytest.fixture(scope="module")
def captioners(tiny_models: dict[str, Path]) -> dict[str, Captioner]:
    return load_captioners([str(tiny_models["sat"]), str(tiny_models["transformer"])])


@pytest.fixture
def picture(drawn_pictures: Path) -> Path:
    return drawn_pictures / "red_circle.jpg"


def floats(text: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").reshape(shape)


def test_names_and_duplicates(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    twin = tmp_path / "tiny-sat"
    twin.symlink_to(tiny_models["sat"])
    models = [str(tiny_models["sat"]), str(twin), str(twin)]
    assert list(load_captioners(models)) == ["tiny-sat", str(twin)]


def test_no_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoint, "PRETRAINED", tmp_path)
    with pytest.raises(FileNotFoundError, match="captioner demo --model DIR"):
        load_captioners()
    with pytest.raises(FileNotFoundError, match="no model 'gone'"):
        load_captioners(["gone"])


@pytest.mark.parametrize("name", ["tiny-sat", "tiny-transformer"])
def test_the_viewer_gets_what_the_decoder_used(
    captioners: dict[str, Captioner], picture: Path, name: str
) -> None:
    image = read_upload(picture)
    options = {"num_captions": 3}
    data = json.loads(view_picture(name, captioners[name], image, options))
    results = describe_picture(captioners[name], image, options)
    assert (data["model"], data["options"], data["forced"]) == (name, options, 0)
    assert (data["width"], data["height"]) == image.size
    assert len(data["captions"]) == len(results) == 3
    for shown, result in zip(data["captions"], results, strict=True):
        assert shown["text"] == result.text
        assert [word["word"] for word in shown["words"]] == list(result.words)
        # The very same numbers, not a picture or a rounding of them.
        maps = floats(shown["attention"], *result.attention.shape)
        assert maps.tobytes() == result.attention.tobytes()
        assert len(shown["alternatives"]) == len(result.words) + 1
        assert result.layer_attention is not None
        if name == "tiny-sat":
            assert shown["layers"] is None
        else:
            layers = floats(shown["layers"]["data"], *result.layer_attention.shape)
            assert (shown["layers"]["layers"], shown["layers"]["heads"]) == (2, 2)
            np.testing.assert_allclose(layers[:, -1].mean(1), maps, atol=1e-6)
        if result.finished:
            total = sum(word["log_prob"] for word in shown["words"]) + shown["end_log_prob"]
            assert total == pytest.approx(result.log_prob, abs=1e-4)


def test_a_forced_word_goes_on(captioners: dict[str, Captioner], picture: Path) -> None:
    captioner, image = captioners["tiny-sat"], read_upload(picture)
    data = json.loads(view_picture("tiny-sat", captioner, image, {}))
    first = data["captions"][0]
    other = next(o for o in first["alternatives"][1] if o["word"] != "<eos>")
    prefix = [first["words"][0]["word"], other["word"]]
    again = json.loads(view_picture("tiny-sat", captioner, image, {}, prefix=prefix))
    assert again["forced"] == 2
    words = again["captions"][0]["words"]
    assert [word["word"] for word in words[:2]] == prefix
    assert words[1]["log_prob"] == pytest.approx(other["log_prob"], abs=1e-4)
    ended = json.loads(view_picture("tiny-sat", captioner, image, {}, prefix=[*prefix, "<eos>"]))
    assert ended["captions"][0]["text"].split() == prefix
    with pytest.raises(DemoError, match="words that the model knows, got 'zebra'"):
        view_picture("tiny-sat", captioner, image, {}, prefix=["zebra"])


def test_large_pictures_are_shown_smaller(
    captioners: dict[str, Captioner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "SHOWN_SIDE", 50)
    image = Image.new("RGB", (200, 100), "teal")
    data = json.loads(view_picture("m", captioners["tiny-sat"], image, {}))
    assert (data["width"], data["height"]) == (200, 100)
    shown = base64.b64decode(data["picture"].partition(",")[2])
    assert Image.open(io.BytesIO(shown)).size == (50, 25)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n and no more"])
def test_what_is_no_picture_gets_a_message(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "upload.png"
    path.write_bytes(content)
    with pytest.raises(DemoError, match="cannot be read as a picture") as caught:
        read_upload(path)
    assert str(tmp_path) not in str(caught.value)  # the server's folders are nobody's business
    with pytest.raises(DemoError) as caught:
        read_upload(tmp_path / "gone.png")
    assert str(tmp_path) not in str(caught.value)
    with pytest.raises(DemoError, match="cannot be read as a picture"):
        read_upload(io.BytesIO(content))


def test_large_pictures_are_refused_by_their_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "x.png")
    monkeypatch.setattr(handlers, "MAX_PIXELS", 1000)
    monkeypatch.setattr(handlers, "read_image", lambda _: pytest.fail("was read"))
    with pytest.raises(DemoError, match="40 x 30 pixels, more than the 1,000"):
        read_upload(tmp_path / "x.png")


def test_other_mistakes_get_a_message(captioners: dict[str, Captioner]) -> None:
    with pytest.raises(DemoError, match="Add a picture first"):
        read_upload(None)
    for name in ("other", None, 3):
        with pytest.raises(DemoError, match="choose tiny-sat or tiny-transformer"):
            find_captioner(captioners, name)


def test_decoding_options_are_checked(captioners: dict[str, Captioner]) -> None:
    captioner = captioners["tiny-sat"]
    assert decoding_options(captioner) == {}
    assert decoding_options(captioner, beam_size=2.0) == {"beam_size": 2}
    for wrong, message in (
        ({"beam_size": 0}, "beam_size must be at least 1"),
        ({"beam_size": 1000}, "beam_size must be at most 10 here, got 1000"),
        ({"max_length": 10**6}, "max_length must be at most 50 here"),
        ({"method": "magic"}, "method must be greedy, beam or sample"),
        ({"temperature": 2.0}, "temperature has no effect on method beam"),
        ({"beam_size": 1.5}, "beam_size must be a whole number"),
        ({"beam_size": "many"}, "beam_size must be a whole number"),
    ):
        with pytest.raises(DemoError, match=message):
            decoding_options(captioner, **wrong)


def test_the_answer_to_programs(captioners: dict[str, Captioner], picture: Path) -> None:
    captioner = captioners["tiny-sat"]
    results = describe_picture(captioner, read_upload(picture), {"num_captions": 2})
    answer = json.loads(json.dumps(api_answer("tiny-sat", "red.jpg", results)))
    result = captioner.caption(picture)
    assert (answer["image"], answer["model"]) == ("red.jpg", "tiny-sat")
    assert (answer["caption"], tuple(answer["words"])) == (result.text, result.words)
    assert len(answer["alternatives"]) == len(answer["words"])
    assert {len(place) for place in answer["alternatives"]} == {5}
    assert np.array(answer["attention"]).shape == (
        len(result.words),
        answer["rows"],
        answer["cols"],
    )
    assert [one["caption"] for one in answer["captions"]] == [one.text for one in results]


@pytest.mark.parametrize("finished", [True, False])
def test_files_to_take_along(
    captioners: dict[str, Captioner], picture: Path, finished: bool
) -> None:
    captioner, image = captioners["tiny-transformer"], read_upload(picture)
    words = ["a", "red", "circle"]
    files = {
        kind: export_caption(captioner, image, words, finished, kind, View(layer=0, head=1))
        for kind in handlers.EXPORTS
    }
    assert Image.open(io.BytesIO(files["png"])).format == "PNG"
    assert b"circle" in files["svg"]
    assert files["svg"].count(b"<image") == 4
    for kind in ("gif", "webp"):
        animation = Image.open(io.BytesIO(files[kind]))
        assert animation.format == kind.upper()
        assert animation.n_frames == 4
    plain = export_caption(captioner, image, words, finished, "png", View())
    assert plain != files["png"]


def test_files_that_no_page_asks_for(captioners: dict[str, Captioner], picture: Path) -> None:
    captioner, image = captioners["tiny-sat"], read_upload(picture)
    with pytest.raises(DemoError, match="no file of kind 'exe'"):
        export_caption(captioner, image, ["a"], True, "exe", View())
    with pytest.raises(DemoError, match="at most 50 words here, got 51"):
        export_caption(captioner, image, ["a"] * 51, True, "png", View())
    with pytest.raises(DemoError, match="no words to draw"):
        export_caption(captioner, image, [], False, "png", View())
    with pytest.raises(DemoError, match="layer must be from 0 to 0, got 7"):
        export_caption(captioner, image, ["a"], True, "png", View(layer=7))
    assert View.from_request({"opacity": "x", "colormap": "/etc", "layer": "1"}) == View()
    assert View.from_request({"opacity": 7, "smooth": False}) == View(opacity=1.0, smooth=False)


def test_a_request_that_takes_too_long_is_given_up() -> None:
    limit = TimeLimit(0.05, threads=1)
    assert limit.run(lambda x: x + 1, 2) == 3
    with pytest.raises(DemoError, match=r"longer than 0\.05 seconds and was given up"):
        limit.run(time.sleep, 0.4)


def test_a_mistake_comes_through_the_time_limit() -> None:
    def fail() -> None:
        raise DemoError("it is wrong")

    with pytest.raises(DemoError, match="it is wrong"):
        TimeLimit(5).run(fail)


def test_words_without_a_font_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "find_undrawable", lambda text: "猫" if "猫" in text else "")
    assert font_note(["a", "cat"], "png") == ""
    assert "No font on the server has 猫" in font_note(["一", "猫"], "gif")
    assert font_note(["一", "猫"], "svg") == ""


def test_downloads_differ_each_time() -> None:
    first, second = (to_download("a.png", "image/png", b"x") for _ in range(2))
    assert first != second
    assert json.loads(first)["url"] == "data:image/png;base64,eA=="


def test_colours_are_those_of_the_files() -> None:
    for name, table in colormap_tables().items():
        assert len(base64.b64decode(table)) == 768, name


def test_models_are_described(captioners: dict[str, Captioner]) -> None:
    text = describe_model(captioners["tiny-sat"])
    assert text.startswith("Show, Attend and Tell on test_efficientnet, ")
    assert "15 words" in text
    assert text.endswith("training data not named; terms not given.")


def test_models_are_described_by_their_own_files(
    captioners: dict[str, Captioner], tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    captioner = captioners["tiny-sat"]
    card = """\
# my-model

- **Data:** Our holidays (2024, three
  albums), 700 pictures; the vocabulary from their captions.
- **Recipe:** much patience.

The weights are for **use at home**: the pictures are ours.
"""
    wanted = "trained on Our holidays (2024, three albums); weights are for use at home."
    assert describe_model(captioner, card).endswith(wanted)
    config = {**captioner.config, "provenance": {"dataset": "COCO", "licence": "CC BY 4.0"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captioner, "config", config)
        assert describe_model(captioner, card).endswith("trained on COCO; CC BY 4.0.")
    # The card that `captioner export` writes names no data, only the terms.
    models = [str(tiny_models["sat"]), str(tiny_models["transformer"])]
    for text in describe_models(captioners, models).values():
        assert text.endswith("training data not named; weights are for research use.")
    assert read_card(str(tmp_path / "run.ckpt")) == ""


@pytest.mark.parametrize("name", checkpoint.list_models())
def test_the_page_says_what_ships_was_trained_on(
    captioners: dict[str, Captioner], name: str
) -> None:
    text = describe_model(captioners["tiny-sat"], read_card(name))
    assert "trained on" in text
    assert "weights are for" in text


def test_a_viewer_without_a_caption() -> None:
    answer = json.loads(view_nothing(3, "no picture"))
    assert (answer["asked"], answer["error"]) == (3, "no picture")
    assert "captions" not in answer
