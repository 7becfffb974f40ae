"""What people install: the wheel, away from the checkout, captions with the weights it brings."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents, as pip lays them out."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    # Built from what git knows, so that a forgotten file is missed here and not by a user.
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    (wheel,) = folder.glob("captioner-*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True
    )
    return folder / "site"


def _python(installed: Path, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sat-flickr8k", "transformer-flickr8k"])
def test_an_installed_wheel_captions_with_the_shipped_weights(
    installed: Path, tmp_path: Path, drawn_pictures: Path, model: str
):
    where = _python(installed, tmp_path, "-c", "import captioner; print(captioner.__file__)")
    assert where.stdout.startswith(str(installed)), where.stderr
    picture = drawn_pictures / "red_circle.jpg"
    done = _python(
        installed, tmp_path,
        "-m", "captioner.cli", "caption", str(picture),
        "--model", model, "--format", "jsonl", "--attention", "maps",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["image"] == str(picture)
    assert len(result["words"]) == len(result["word_log_probs"]) >= 3
    assert (tmp_path / "maps" / "red_circle.jpg.png").is_file()
    assert (tmp_path / "maps" / "red_circle.jpg.npz").is_file()


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_nothing_else(installed: Path):
    (wheel,) = installed.parent.glob("captioner-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"captioner"}
    assert "captioner/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
