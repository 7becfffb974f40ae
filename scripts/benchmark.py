"""Measure speed on random inputs and print it as JSON.

    python scripts/benchmark.py decoders                    # both decoders beside a naive one
    python scripts/benchmark.py decoders --rows 9 --cols 9 --channels 1280 --vocabulary 2700 \
        --batch-size 12 --captions-per-picture 5 --decoder lstm
    python scripts/benchmark.py encoder --size 260
    python scripts/benchmark.py allocator --size 260        # what keeping freed memory brings
    python scripts/benchmark.py metrics captions_val2017.json   # beside pycocoevalcap (Java)

Progress goes to stderr. Rounds of all models are interleaved, so that a busy machine slows all
of them alike and the ratios hold; each figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioner.allocator import keep_freed_memory
from captioner.decoding import DecodingOptions, generate
from captioner.models.interfaces import CaptionDecoder
from captioner.models.losses import caption_cross_entropy
from captioner.models.lstm_decoder import ShowAttendTellDecoder
from captioner.models.transformer_decoder import TransformerDecoder
from captioner.types import ImageFeatures, SpecialIds

SPECIAL_IDS = SpecialIds()


class NaiveDecoder(nn.Module):
    """The soft-attention LSTM (width 512) as it is often written, to compare with.

    It projects the picture again at every word, keeps its features in full width, works on
    padding, and in beam search takes one picture at a time and a copy of it for every beam.
    """

    def __init__(self, feature_dim: int, vocabulary_size: int, width: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.from_features = nn.Linear(feature_dim, width)
        self.from_hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)
        self.initial_hidden = nn.Linear(feature_dim, width)
        self.initial_cell = nn.Linear(feature_dim, width)
        self.gate = nn.Linear(width, feature_dim)
        self.cell = nn.LSTMCell(width + feature_dim, width)
        self.output = nn.Linear(width, vocabulary_size)

    def init(self, grid: Tensor) -> tuple[Tensor, Tensor]:
        """Initial hidden state and cell of grids (N, R, D)."""
        mean = grid.mean(1)
        return self.initial_hidden(mean), self.initial_cell(mean)

    def word(
        self, grid: Tensor, tokens: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits (N, V) after tokens (N,), and the next state."""
        summed = self.from_features(grid) + self.from_hidden(state[0]).unsqueeze(1)
        attention = self.score(torch.tanh(summed)).softmax(dim=1)  # (N, R, 1)
        context = torch.sigmoid(self.gate(state[0])) * (attention * grid).sum(1)
        state = self.cell(torch.cat((self.embedding(tokens), context), dim=1), state)
        return self.output(F.dropout(state[0], 0.5, self.training)), state

    def loss(self, grid: Tensor, tokens: Tensor, mask: Tensor, picture: Tensor) -> Tensor:
        """Cross-entropy of captions (N, T + 1) with real targets where mask (N, T) is True."""
        grid = grid[picture]
        state = self.init(grid)
        logits = []
        for step in range(mask.shape[1]):
            scores, state = self.word(grid, tokens[:, step], state)
            logits.append(scores)
        return F.cross_entropy(torch.stack(logits, dim=1)[mask], tokens[:, 1:][mask])

    @torch.no_grad()
    def beam_search(self, grid: Tensor, beam_size: int, num_words: int) -> list[list[int]]:
        """Best of ``beam_size`` captions of ``num_words`` words for each picture, one by one."""
        captions = []
        for one in grid:
            beams = one.expand(beam_size, -1, -1).contiguous()
            state = self.init(beams)
            words = torch.full((beam_size, 1), SPECIAL_IDS.bos_id)
            total = torch.full((beam_size, 1), -torch.inf)
            total[0] = 0
            for _ in range(num_words):
                scores, state = self.word(beams, words[:, -1], state)
                log_probs = scores.log_softmax(dim=1)
                log_probs[:, : SPECIAL_IDS.unk_id + 1] = -torch.inf
                total, chosen = (total + log_probs).flatten().topk(beam_size)
                parent = chosen // scores.shape[1]
                total = total.unsqueeze(1)
                words = torch.cat((words[parent], (chosen % scores.shape[1]).unsqueeze(1)), dim=1)
                state = (state[0][parent], state[1][parent])
            captions.append(words[0, 1:].tolist())
        return captions


def note(text: str) -> None:
    """Say how far the measurement is."""
    print(text, file=sys.stderr, flush=True)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long ``work`` takes."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def interleaved(
    works: dict[str, Callable[[], object]], rounds: int, device: torch.device, what: str
) -> dict[str, float]:
    """Median seconds of each of ``works`` over ``rounds``, after one round to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            duration = seconds(work, device)
            note(f"{what}: {name}, round {turn} of {rounds}: {duration:.3f} s")
            if turn:
                taken[name].append(duration)
    return {name: statistics.median(durations) for name, durations in taken.items()}


def rates(
    durations: dict[str, float], counts: dict[str, int], unit: str
) -> dict[str, dict[str, float]]:
    """Durations as rates, with the ratio to the naive decoder where that was measured."""
    speeds = {name: counts[name] / duration for name, duration in durations.items()}
    result = {}
    for name, speed in speeds.items():
        result[name] = {unit: round(speed, 2), "seconds": round(durations[name], 4)}
        if "naive" in speeds and name != "naive":
            result[name]["times_naive"] = round(speed / speeds["naive"], 2)
    return result


def training_step(
    model: nn.Module, loss: Callable[[], Tensor], autocast: bool, device: torch.device
) -> Callable[[], object]:
    """One step of ``model``: loss, backward, Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def work() -> None:
        model.train()
        with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
            value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return work


def benchmark_decoders(options: argparse.Namespace) -> dict[str, object]:
    """Training captions per second and beam-search pictures per second of each decoder."""
    device = torch.device(options.device)
    num_pictures, num_regions = options.batch_size, options.rows * options.cols
    grid = torch.randn(num_pictures, num_regions, options.channels, device=device)
    features = ImageFeatures(grid, options.rows, options.cols)
    num_captions = num_pictures * options.captions_per_picture
    lengths = torch.randint(options.min_tokens, options.max_tokens + 1, (num_captions,))
    mask = (torch.arange(options.max_tokens) < lengths.unsqueeze(1)).to(device)
    shape = (num_captions, options.max_tokens + 1)
    tokens = torch.randint(SPECIAL_IDS.unk_id + 1, options.vocabulary, shape).to(device)
    tokens[:, 0] = SPECIAL_IDS.bos_id
    picture = torch.arange(num_pictures, device=device)
    picture = picture.repeat_interleave(options.captions_per_picture)
    targets = tokens[:, 1:][mask]
    search = DecodingOptions(
        method="beam",
        beam_size=options.beam_size,
        min_length=options.words,
        max_length=options.words,
    )

    def decoder_loss(decoder: nn.Module) -> Callable[[], Tensor]:
        def loss() -> Tensor:
            output = decoder(features, tokens[:, :-1], mask, picture, need_attention=False)
            return caption_cross_entropy(output.logits, targets)

        return loss

    def decoder_search(decoder: CaptionDecoder) -> Callable[[], object]:
        return lambda: generate(decoder, features, search, SPECIAL_IDS)

    training: dict[str, Callable[[], object]] = {}
    searching: dict[str, Callable[[], object]] = {}
    parameters: dict[str, int] = {}
    classes = {"lstm": ShowAttendTellDecoder, "transformer": TransformerDecoder}
    for name in options.decoder:
        decoder = classes[name](options.channels, options.vocabulary).to(device)
        parameters[name] = sum(parameter.numel() for parameter in decoder.parameters())
        training[name] = training_step(decoder, decoder_loss(decoder), options.autocast, device)
        searching[name] = decoder_search(decoder)
    if not options.no_naive:
        naive = NaiveDecoder(options.channels, options.vocabulary).to(device)
        parameters["naive"] = sum(parameter.numel() for parameter in naive.parameters())
        training["naive"] = training_step(
            naive, lambda: naive.loss(grid, tokens, mask, picture), options.autocast, device
        )
        searching["naive"] = lambda: naive.eval().beam_search(
            grid[: options.naive_pictures], options.beam_size, options.words
        )

    result: dict[str, object] = {"parameters": parameters}
    if not options.no_training:
        durations = interleaved(training, options.rounds, device, "training step")
        result["training"] = rates(
            durations, dict.fromkeys(durations, num_captions), "captions_per_second"
        )
    if not options.no_search:
        durations = interleaved(searching, options.rounds, device, "beam search")
        result["beam_search"] = rates(
            durations,
            dict.fromkeys(durations, num_pictures)
            | {"naive": min(num_pictures, options.naive_pictures)},
            "pictures_per_second",
        )
    return result


def benchmark_encoder(options: argparse.Namespace) -> dict[str, object]:
    """Pictures per second of a frozen encoder with random weights."""
    from captioner.models.encoder import CnnEncoder

    if options.keep_freed_memory:
        keep_freed_memory()
    device = torch.device(options.device)
    encoder = CnnEncoder(backbone=options.backbone, stage=options.stage).to(device).eval()
    images = torch.randn(options.batch_size, 3, options.size, options.size, device=device)
    if not options.contiguous:
        encoder = encoder.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)

    def work() -> None:
        with (
            torch.inference_mode(),
            torch.autocast(device.type, torch.bfloat16) if options.autocast else nullcontext(),
        ):
            encoder(images)

    durations = interleaved({"encoder": work}, options.rounds, device, "encoder")
    rows, cols = encoder.grid_size(options.size, options.size)
    result: dict[str, object] = {
        "grid": [rows, cols, encoder.feature_dim],
        "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
    }
    return result | rates(durations, {"encoder": options.batch_size}, "pictures_per_second")


def benchmark_allocator(options: argparse.Namespace) -> dict[str, object]:
    """Pictures per second of the encoder with and without kept memory, a process each."""
    command = [sys.executable, __file__, "encoder"]
    for name in ("batch_size", "rounds", "threads", "device", "seed", "backbone", "stage", "size"):
        value = getattr(options, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    speeds: dict[str, float] = {}
    for name, extra in (("kept", ["--keep-freed-memory"]), ("given_back", [])):
        note(f"allocator: freed memory is {name.replace('_', ' ')}")
        done = subprocess.run([*command, *extra], check=True, stdout=subprocess.PIPE, text=True)
        speeds[name] = json.loads(done.stdout)["encoder"]["pictures_per_second"]
    ratio = round(speeds["kept"] / speeds["given_back"], 2)
    return {"pictures_per_second": speeds, "times_given_back": ratio}


def benchmark_metrics(options: argparse.Namespace) -> dict[str, object]:
    """Caption metrics beside pycocoevalcap's: the first caption of each picture as hypothesis."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    from captioner.metrics import CiderReward, ptb_tokenize_pair, score_captions
    from captioner.metrics.meteor import load_resources, meteor

    annotations = json.loads(Path(options.annotations).read_text(encoding="utf-8"))["annotations"]
    captions: dict[int, list[str]] = {}
    for annotation in sorted(annotations, key=lambda annotation: annotation["id"]):
        captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    chosen = list(captions.items())[: options.pictures]
    hypotheses = {key: first for key, (first, *rest) in chosen if rest}
    references = {key: rest for key, (_, *rest) in chosen if rest}
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-Dfile.encoding=UTF-8")

    def package() -> tuple[dict[int, list[str]], dict[int, list[str]]]:
        with contextlib.redirect_stdout(io.StringIO()):
            tokenizer = PTBTokenizer()
            their_references = tokenizer.tokenize(
                {key: [{"caption": text} for text in texts] for key, texts in references.items()}
            )
            their_hypotheses = tokenizer.tokenize(
                {key: [{"caption": text}] for key, text in hypotheses.items()}
            )
            for scorer in (Bleu(4), Rouge(), Cider()):
                scorer.compute_score(their_references, their_hypotheses)
        return their_references, their_hypotheses

    def ours() -> tuple[dict[int, str], dict[int, list[str]]]:
        ours_hypotheses, ours_references = ptb_tokenize_pair(hypotheses, references)
        score_captions(ours_hypotheses, ours_references, ("Bleu", "ROUGE_L", "CIDEr"))
        return ours_hypotheses, ours_references

    note("building METEOR's index where it is not there yet")
    load_resources()
    their_references, their_hypotheses = package()
    tokenized, tokenized_references = ours()
    reward = CiderReward(tokenized_references)
    keys, texts = list(tokenized), list(tokenized.values())

    def jar() -> None:
        Meteor().compute_score(their_references, their_hypotheses)

    def package_cider() -> None:
        Cider().compute_score(their_references, their_hypotheses)

    device = torch.device("cpu")
    result: dict[str, object] = {"pictures": len(keys)}
    works: dict[str, dict[str, Callable[[], object]]] = {
        "tokens_bleu_rouge_cider": {"package": package, "ours": ours},
        "meteor": {
            "package": jar,
            "ours": lambda: meteor(tokenized, tokenized_references),
        },
        "cider_reward": {"package": package_cider, "ours": lambda: reward(keys, texts)},
    }
    for what, pair in works.items():
        taken = interleaved(pair, options.rounds, device, what)
        result[what] = {
            "seconds": {name: round(duration, 3) for name, duration in taken.items()},
            "times_package": round(taken["package"] / taken["ours"], 2),
        }
    return result


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--batch-size", type=int, default=32, help="pictures (default: 32)")
    common.add_argument("--rounds", type=int, default=3, help="measured rounds (default: 3)")
    common.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    common.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    common.add_argument("--autocast", action="store_true", help="run in bfloat16 where possible")
    common.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)

    decoders = commands.add_parser(
        "decoders",
        parents=[common],
        help="training and beam search of the decoders",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    decoders.add_argument("--rows", type=int, default=14, help="of the grid")
    decoders.add_argument("--cols", type=int, default=14, help="of the grid")
    decoders.add_argument("--channels", type=int, default=2048, help="width of the features")
    decoders.add_argument("--vocabulary", type=int, default=9490, help="words")
    decoders.add_argument("--min-tokens", type=int, default=9, help="of a training caption")
    decoders.add_argument("--max-tokens", type=int, default=17, help="of a training caption")
    decoders.add_argument("--captions-per-picture", type=int, default=1, help="in training")
    decoders.add_argument("--words", type=int, default=19, help="of every caption searched for")
    decoders.add_argument("--beam-size", type=int, default=5, help="of the search")
    decoders.add_argument(
        "--decoder",
        nargs="+",
        choices=("lstm", "transformer"),
        default=["lstm", "transformer"],
        help="which decoders",
    )
    decoders.add_argument(
        "--naive-pictures",
        type=int,
        default=4,
        help="pictures that the naive decoder searches for; it takes them one by one anyway",
    )
    decoders.add_argument("--no-naive", action="store_true", help="leave the naive decoder out")
    decoders.add_argument("--no-training", action="store_true", help="only search")
    decoders.add_argument("--no-search", action="store_true", help="only train")
    decoders.set_defaults(run=benchmark_decoders)

    network = argparse.ArgumentParser(add_help=False)
    network.add_argument("--backbone", default="timm/tf_efficientnet_lite2", help="its name")
    network.add_argument("--stage", default="conv_head", help="where it is cut")
    network.add_argument("--size", type=int, default=260, help="height and width in pixels")

    encoder = commands.add_parser(
        "encoder",
        parents=[common, network],
        help="pictures per second of an encoder",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    encoder.add_argument(
        "--contiguous", action="store_true", help="channels first, not last, in memory"
    )
    encoder.add_argument(
        "--keep-freed-memory", action="store_true", help="as the captioner command does"
    )
    encoder.set_defaults(run=benchmark_encoder)

    allocator = commands.add_parser(
        "allocator",
        parents=[common, network],
        help="what it brings an encoder on the CPU to keep freed memory",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    allocator.set_defaults(run=benchmark_allocator)

    metrics = commands.add_parser(
        "metrics",
        help="caption metrics beside pycocoevalcap's",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    metrics.add_argument("annotations", help="a captions file of COCO, such as val2017's")
    metrics.add_argument("--pictures", type=int, help="only the first ones (default: all)")
    metrics.add_argument("--rounds", type=int, default=3, help="measured rounds")
    metrics.set_defaults(threads=None, seed=0)
    metrics.set_defaults(run=benchmark_metrics)
    return parser


def main() -> None:
    """Run the benchmark that the command line asks for."""
    options = build_parser().parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    settings = {name: value for name, value in vars(options).items() if name != "run"}
    settings["threads"] = torch.get_num_threads()
    result = {"torch": torch.__version__, "settings": settings} | options.run(options)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
