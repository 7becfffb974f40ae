import datetime

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from captioner.metrics.score import MetricUnavailable
from captioner.metrics.suite import score_captions
from captioner.metrics.torch_metrics import Bleu, CaptionScores, Cider, RougeL, Spice

REFERENCES = {
    1: ["a dog runs on grass", "the dog is running"],
    "b.jpg": ["two cats sleep on a red sofa"],
    3: ["a man rides a horse", "a person on a horse", "man on horse"],
    4: ["a bowl of ripe fruit"],
    5: ["people walk along the beach at night"],
}
CAPTIONS = {
    1: "a dog runs",
    "b.jpg": "two cats on a sofa",
    3: "a man on a horse",
    4: "a bowl of soup",
    5: "people on the beach",
}


def expected():
    return {name: score.corpus for name, score in score_captions(CAPTIONS, REFERENCES).items()}


def values(metric):
    return {name: value.item() for name, value in metric.compute().items()}


def test_batches_give_the_score_of_the_whole_set():
    metric = CaptionScores(REFERENCES, tokenize=str.split)
    for ids in ([1, "b.jpg"], [3], [4, 5]):
        metric.update(ids, [CAPTIONS[i] for i in ids])
    assert values(metric) == pytest.approx(expected(), abs=1e-12)
    assert metric.captions() == CAPTIONS  # ids keep their kind
    assert metric.score(metric.captions())["CIDEr"].per_image.keys() == CAPTIONS.keys()


def test_a_repeated_picture_counts_once_and_reset_forgets():
    metric = CaptionScores(REFERENCES, tokenize=str.split)
    metric.update(list(CAPTIONS), list(CAPTIONS.values()))
    metric.update([1, 3], ["another caption", CAPTIONS[3]])
    assert values(metric) == pytest.approx(expected(), abs=1e-12)
    metric.reset()
    with (
        pytest.warns(UserWarning, match="before the ``update``"),  # torchmetrics' own
        pytest.raises(ValueError, match="captions of 0 pictures"),
    ):
        metric.compute()


def test_missing_and_unknown_pictures_are_named():
    metric = CaptionScores(REFERENCES, tokenize=str.split)
    metric.update([1, 99], ["a dog", "a cat"])
    with pytest.raises(ValueError, match=r"4 missing \(3, 4, 5, b.jpg\); 1 unknown \(99\)"):
        metric.compute()


def test_a_part_scores_with_the_frequencies_of_the_whole():
    metric = CaptionScores(REFERENCES, ["CIDEr"], str.split, allow_missing=True)
    metric.update([1, 3], [CAPTIONS[1], CAPTIONS[3]])
    whole = score_captions(CAPTIONS, REFERENCES)["CIDEr"].per_image
    assert values(metric)["CIDEr"] == pytest.approx((whole[1] + whole[3]) / 2, abs=1e-12)


def test_the_default_tokens_are_those_of_coco_caption():
    metric = CaptionScores({1: ["A dog."], 2: ["Two cats!"]}, ["ROUGE_L"])
    metric.update([1, 2], ["a dog", "two cats ."])
    assert values(metric) == {"ROUGE_L": 1.0}


@pytest.mark.parametrize(
    ("metric", "name"), [(Bleu, "Bleu_4"), (RougeL, "ROUGE_L"), (Cider, "CIDEr")]
)
def test_one_score_alone(metric, name):
    scores = metric(REFERENCES, str.split)
    scores.update(list(CAPTIONS), list(CAPTIONS.values()))
    assert scores.compute().item() == pytest.approx(expected()[name], abs=1e-12)


def test_bleu_of_another_order():
    scores = Bleu(REFERENCES, str.split, order=2)
    scores.update(list(CAPTIONS), list(CAPTIONS.values()))
    assert scores.compute().item() == pytest.approx(expected()["Bleu_2"], abs=1e-12)
    with pytest.raises(ValueError, match="order must be"):
        Bleu(REFERENCES, order=5)


def test_captions_in_any_script_survive():
    references = {1: ["猫 が いる"], 2: ["ein Hund\nläuft"]}
    metric = CaptionScores(references, ["ROUGE_L"], str.split)
    metric.update([1, 2], ["猫 が いる", "ein Hund läuft\u2028 \x1e"])
    assert values(metric) == {"ROUGE_L": 1.0}


def test_a_metric_that_cannot_be_computed_is_told_before_captions_are_made(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MetricUnavailable, match=r"SPICE: .*no java on the PATH"):
        Spice(REFERENCES)


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="equally long, got 2 and 1"):
        CaptionScores(REFERENCES, tokenize=str.split).update([1, 2], ["a"])


def test_captions_are_no_part_of_a_checkpoint():
    metric = CaptionScores(REFERENCES, tokenize=str.split)
    metric.update([1], ["a dog"])
    assert metric.state_dict() == {}


def _worker(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=120),
    )
    try:
        metric = CaptionScores(REFERENCES, tokenize=str.split)
        # The shares overlap, as a distributed sampler makes them, and the last process has none.
        share = [[1, "b.jpg", 3], [3, 4, 5, 1], []][rank]
        if share:
            metric.update(share, [CAPTIONS[i] for i in share])
        found = values(metric)
        captions = metric.captions()
        assert found == pytest.approx(expected(), abs=1e-12)
        assert captions == CAPTIONS
        torch.save(found, f"{folder}/{rank}.pt")
        metric.reset()
        if rank == 0:
            metric.update([1], [CAPTIONS[1]])
        with pytest.raises(ValueError, match="4 missing"):
            metric.compute()  # on every process: none goes on alone
    finally:
        dist.destroy_process_group()


def test_processes_are_gathered_and_agree(tmp_path):
    mp.spawn(_worker, args=(3, str(tmp_path)), nprocs=3)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(3)]
    assert found[0] == found[1] == found[2]
