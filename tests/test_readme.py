"""Every command of the README runs, in its order, on a data set of twelve drawn pictures."""

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from captioner.cli import main
from captioner.data.sources import CaptionTable

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def _commands() -> list[str]:
    text = "\n".join(_blocks("sh")).replace("\\\n", " ")
    lines = (line.partition("  #")[0].strip() for line in text.splitlines())
    return [" ".join(line.split()) for line in lines if line]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, drawn_pictures: Path) -> Path:
    """A working folder that looks as the README supposes: configs, data, examples."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("configs", "demo", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(drawn_pictures, folder / "my")
    data = folder / "data" / "flickr8k"
    shutil.copytree(drawn_pictures, data / "Images")
    records = CaptionTable(drawn_pictures / "captions.csv").records()
    # The test pictures hold a shape that training never shows.
    names = {"train": "train", "val": "dev", "test": "test"}
    for split, name in names.items():
        listed = [str(r.image_id) for r in records if r.split == split]
        (data / f"Flickr_8k.{name}Images.txt").write_text("\n".join(listed))
    lines = [f"{r.image_id}#{i}\t{c}" for r in records for i, c in enumerate(r.captions)]
    (data / "Flickr8k.token.txt").write_text("\n".join(lines))
    (folder / "references.json").write_text(
        json.dumps({r.image_id: list(r.captions) for r in records})
    )
    for name, captions in (("mine", ["a red circle"]), ("theirs", ["a dog", "a blue square"])):
        written = {r.image_id: captions[i % len(captions)] for i, r in enumerate(records)}
        (folder / f"{name}.json").write_text(json.dumps(written))
    return folder


def _small(command: str, place: Path) -> list[str]:
    """The command as written, made small where it trains, with the paths that it made itself."""
    arguments = shlex.split(command)[1:]
    if arguments[0] == "fit":
        arguments += ["--trainer.max_epochs", "1", "--data.num_workers", "0", "--data.min_count"]
        arguments += ["1", "--trainer.enable_progress_bar", "false"]
    for i, argument in enumerate(arguments):
        if "..." in argument:
            before, after = argument.split("...")
            found = sorted(place.glob(f"{before}**{after}"), key=lambda p: p.stat().st_mtime)
            assert found, f"nothing like {argument}"
            arguments[i] = str(found[-1].relative_to(place))
    return arguments


@pytest.mark.slow
def test_the_commands_run_in_their_order(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(place)
    ran = []
    for command in _commands():
        # The demo serves until it is stopped; tests/demo drives it.
        if not command.startswith("captioner ") or command.startswith("captioner demo"):
            continue
        output, errors = io.StringIO(), io.StringIO()
        arguments = _small(command, place)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = main(arguments)
        assert status == 0, f"{command}\n{output.getvalue()}\n{errors.getvalue()[-3000:]}"
        ran.append(arguments[0])
    assert {"caption", "data", "fit", "test", "export", "evaluate", "compare"} <= set(ran)
    assert (place / "maps" / "coffee.jpg.png").is_file()
    assert len(list(place.glob("runs/*/*/config.yaml"))) >= 3


@pytest.mark.slow
def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    example, client = _blocks("python")
    assert "gradio_client" in client  # runs in tests/demo, against a real server
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(example, "README.md", "exec"), {})
    text, shape = output.getvalue().splitlines()
    assert len(text.split()) >= 3
    assert re.fullmatch(r"\(\d+, \d+, \d+\)", shape)


def test_the_make_commands_and_files_exist():
    for target in ("demo", "test"):
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    for path in re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(
        r"`(configs/\S+\.yaml)`", README
    ):
        assert (ROOT / path).exists(), path
