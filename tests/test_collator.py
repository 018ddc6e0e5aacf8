"""Collators: the shipped one by hand, and a user's own around those of several trainers."""

import functools

import pytest
import torch

from runner.__main__ import main
from runner.collator import Buckets
from runner.config.composition import compose
from runner.config.experiment import Experiment
from runner.errors import ConfigError
from runner.run.history import read_metrics
from runner.training.stand_in import first_rows_prepared


def batch(rows):
    return {
        "input_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]),
        "labels": torch.tensor([[-100, 6, 7], [8, 9, -100]]),
        "completion_mask": torch.tensor([[0, 1, 1], [1, 1, 0]]),
        "ref_logps": torch.tensor([1.0, 2.0]),
    }


def test_buckets_pad_each_part_with_a_neutral_value():
    padded = Buckets(batch, pad_token_id=3, lengths=[8, 4])([])
    assert padded["input_ids"].tolist() == [[5, 6, 7, 3], [8, 9, 0, 3]]
    assert padded["labels"].tolist() == [[-100, 6, 7, -100], [8, 9, -100, -100]]
    assert padded["completion_mask"].tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]
    assert padded["ref_logps"].tolist() == [1.0, 2.0]


def test_rows_longer_than_all_buckets_keep_their_length():
    assert Buckets(batch, pad_token_id=3, lengths=[2])([])["input_ids"].shape == (2, 3)


def test_sequences_without_padding_have_no_buckets():
    free = type("Free", (), {"padding_free": True})()
    with pytest.raises(ConfigError, match="without padding"):
        Buckets(free, pad_token_id=3)


# --- Through the command ------------------------------------------------------------------------

SMALL = (
    "trainer.args.max_steps=2",
    "trainer.args.logging_steps=1",
    "metric=none",
    "dataset.limit.eval=4",
)
SMALL = (*SMALL, "dataset.limit.train=32", "trainer.args.per_device_train_batch_size=8")
MINE = """
import json
from pathlib import Path

class Watching:
    def __init__(self, inner, tokenizer, into):
        self.inner, self.into = inner, into

    def __call__(self, rows):
        made = self.inner(rows)
        shapes = {name: list(part.shape) for name, part in made.items()}
        Path(self.into).write_text(json.dumps(shapes))
        return made

class Alone:
    def __init__(self, pad_token_id):
        self.pad_token_id = pad_token_id

    def __call__(self, rows):
        import torch
        longest = max(len(row["input_ids"]) for row in rows)
        ids = [row["input_ids"] for row in rows]
        ids = [row + [self.pad_token_id] * (longest - len(row)) for row in ids]
        labels = [row["labels"] + [-100] * (longest - len(row["labels"])) for row in rows]
        mask = [[1] * len(row["labels"]) + [0] * (longest - len(row["labels"])) for row in rows]
        made = {"input_ids": ids, "labels": labels, "attention_mask": mask}
        return {name: torch.tensor(part) for name, part in made.items()}
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_collators.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def losses(done):
    assert (done.code, done.state()) == (0, "finished")
    return [line["loss"] for line in done.lines if line["step"]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The losses of a trainer with its own collator, each trained once."""

    @functools.cache
    def losses_of(trainer):
        root = tmp_path_factory.mktemp(trainer)
        assert main([f"trainer={trainer}", *SMALL, f"output_root={root}"]) == 0
        (path,) = root.glob("*/*/metrics.jsonl")
        return [line["loss"] for line in read_metrics(path) if line["step"]]

    return losses_of


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["sft", "dpo", "kto", "orpo", "reward"])
def test_buckets_change_shapes_and_no_loss(train, plain, trainer):
    bucketed = losses(
        train(f"trainer={trainer}", "collator=buckets", "collator.lengths=[40]", *SMALL)
    )
    assert bucketed == pytest.approx(plain(trainer), rel=1e-4)


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["sft", "sft weight=answers", "dpo weight=answers", "kto", "reward"]
)
def test_batches_are_padded_to_a_multiple(words):
    trainer, *settings = words.split()
    cfg = compose(
        [f"trainer={trainer}", *settings, *SMALL, "trainer.args.pad_to_multiple_of=16"]
    ).cfg
    with first_rows_prepared(Experiment.read(cfg), 8) as (components, _):
        batch = next(iter(components.trainer.get_train_dataloader()))
    widths = {
        part.shape[1]
        for name, part in batch.items()
        if name.endswith(("input_ids", "token_weights"))
    }
    assert {width % 16 for width in widths} == {0}


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["sft", "dpo"])
def test_a_user_collator_wraps_the_trainers(train, mine, plain, tmp_path, trainer):
    words = (
        f"trainer={trainer}",
        "collator._target_=my_collators.Watching",
        "collator.into=seen.json",
    )
    assert losses(train(*words, "allow=[my_collators]", *SMALL)) == plain(trainer)
    assert '"input_ids"' in (tmp_path / "seen.json").read_text()


@pytest.mark.slow
def test_a_user_collator_replaces_the_trainers(train, mine, plain):
    words = ("trainer=sft", "collator._target_=my_collators.Alone", "allow=[my_collators]")
    assert losses(train(*words, *SMALL)) == plain("sft")
    # and with weights, whose collator wraps it
    assert losses(
        train(*words, "weight=pattern", "weight.pattern=nowhere", *SMALL, name="weighed")
    ) == plain("sft")
