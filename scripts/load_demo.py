"""Measure the demo: many clients at once, and what the maps cost on top of a caption.

    python scripts/load_demo.py [--model NAME|DIR ...] [--clients 32] [--seconds 60] [PICTURE]

Serves the page on a free port of this machine, has CLIENTS programs caption the picture over HTTP
again and again for SECONDS, each waiting for its answer before it asks anew, and prints how many
answers came, how many were lost, and the median and 95th percentile of the waiting time. Ends with
status 1 if an answer was lost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

from PIL import Image

from captioner import Captioner
from captioner.demo import app
from captioner.demo.handlers import find_captioner, load_captioners, read_upload, view_picture

PICTURE = Path(__file__).resolve().parents[1] / "demo" / "examples" / "chelsea.jpg"


def main() -> int:
    """Run both measurements; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "picture", nargs="?", type=Path, default=PICTURE, help="(default: an example)"
    )
    parser.add_argument("--model", action="append", help="as in `captioner demo`")
    parser.add_argument("--clients", type=int, default=32, help="(default: 32)")
    parser.add_argument("--seconds", type=float, default=60, help="(default: 60)")
    options = parser.parse_args()
    if not options.picture.is_file():
        parser.error(f"no picture at {options.picture}")
    measure_maps(options.model, options.picture)
    return measure_load(options)


def measure_maps(models: list[str] | None, picture: Path, repeats: int = 25) -> None:
    """Print what a caption takes alone, with its maps, and with all that the viewer gets.

    Turn by turn, and the least of each: what other programs on the machine take is not ours.
    """
    captioners = load_captioners(models)
    image = read_upload(picture)
    for name in captioners:
        captioner = find_captioner(captioners, name)
        search = {"num_captions": 3} if captioner.options.method == "beam" else {}
        works: dict[str, Callable[[], object]] = {
            "alone": partial(describe, captioner, image, search),
            "maps": partial(describe, captioner, image, search, layer_attention=True),
            "page": partial(view_picture, name, captioner, image, search),
        }
        times: dict[str, list[float]] = {key: [] for key in works}
        for _ in range(repeats):
            for key, work in works.items():
                start = time.perf_counter()
                work()
                times[key].append(time.perf_counter() - start)
        alone, maps, page = (1000 * min(times[key]) for key in works)
        print(
            f"{name}: caption {alone:.0f} ms; with all its maps {maps:.0f} ms, "
            f"{maps / alone:.2f} times; with alternatives and the picture too, as the page shows "
            f"it, {page:.0f} ms, {page / alone:.2f} times"
        )


def describe(
    captioner: Captioner, image: Image.Image, search: dict[str, int], **extra: bool
) -> None:
    """Caption a picture without its alternatives."""
    list(captioner.describe([image], **search, **extra))


def measure_load(options: argparse.Namespace) -> int:
    """Print the waiting times of many clients; 1 if an answer was lost."""
    addresses: list[str] = []
    page = app.launch(options.model, port=0, announce=addresses.append, block=False)
    waits: list[float] = []
    lost: list[str] = []
    end = time.monotonic() + options.seconds

    def client() -> None:
        try:
            path = upload(addresses[0], options.picture)
            while time.monotonic() < end:
                start = time.monotonic()
                answer = caption(addresses[0], path, options.picture.name)
                waits.append(time.monotonic() - start)
                if not answer["words"]:
                    lost.append("an answer without words")
        except Exception as error:
            lost.append(repr(error))

    threads = [threading.Thread(target=client) for _ in range(options.clients)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begin
    page.close(verbose=False)
    if len(waits) > 1:
        percentiles = statistics.quantiles(waits, n=100, method="inclusive")
        print(
            f"{options.clients} clients for {took:.0f} s: {len(waits)} captions "
            f"({len(waits) / took:.1f} a second), {len(lost)} lost, "
            f"p50 {percentiles[49]:.2f} s, p95 {percentiles[94]:.2f} s"
        )
    for problem in lost[:5]:
        print(f"lost: {problem}", file=sys.stderr)
    return 1 if lost or not waits else 0


def upload(address: str, picture: Path) -> str:
    """Upload a picture; its path on the server."""
    boundary = "captioner-load-boundary"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="files"; '
        f'filename="{picture.name}"\r\nContent-Type: application/octet-stream\r\n\r\n'
    )
    request = urllib.request.Request(
        f"{address}gradio_api/upload",
        data=head.encode() + picture.read_bytes() + f"\r\n--{boundary}--\r\n".encode(),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        path: str = json.load(response)[0]
    return path


def caption(address: str, path: str, name: str) -> dict[str, object]:
    """One request to ``/caption`` with the options that its clients have by default."""
    file = {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}}
    with urllib.request.urlopen(f"{address}gradio_api/info", timeout=300) as response:
        parameters = json.load(response)["named_endpoints"]["/caption"]["parameters"]
    data = [file, *(one["parameter_default"] for one in parameters[1:])]
    request = urllib.request.Request(
        f"{address}gradio_api/call/caption",
        data=json.dumps({"data": data}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        event = json.load(response)["event_id"]
    url = f"{address}gradio_api/call/caption/{event}"
    with urllib.request.urlopen(url, timeout=300) as response:
        lines = response.read().decode().splitlines()
    if "event: complete" not in lines:
        raise RuntimeError(" ".join(lines)[:200])
    place = lines.index("event: complete")
    answer: dict[str, object] = json.loads(lines[place + 1].removeprefix("data: "))[0]
    return answer


if __name__ == "__main__":
    sys.exit(main())
