"""A user's own project, copied elsewhere.

One part of each kind trains through the public command and acts.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from runner.__main__ import main
from runner.io.files import read_json, shipped
from runner.run import Run
from runner.run.history import read_metrics

EXAMPLE = Path(__file__).parent / "example_project"
WORDS = (
    *(
        "experiment=everything",
        "learning_rate=1e-3",
        "trainer.args.max_steps=4",
        "trainer.args.logging_steps=1",
    ),
    *(
        "trainer.args.per_device_train_batch_size=8",
        "dataset.limit.train=64",
        "dataset.limit.eval=8",
    ),
)
VARIANTS = {
    "sft": ("tracker=ledger",),
    "dpo": ("trainer=dpo", "loss=squared", "peft=upper_lora"),
    "grpo": ("trainer=grpo", "reward=in_order", "loss=none", "weight=none", "collator=none"),
}
SHORT = {"grpo": ("trainer.args.max_completion_length=8", "trainer.args.num_generations=2")}


@pytest.fixture
def project(runner):
    """The command, in a copy of the project."""
    shutil.copytree(
        EXAMPLE, runner.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    return lambda *words, **how: runner("--config-dir", "conf", *words, **how)


def the_run(runner, name="everything") -> Run:
    (folder,) = runner.runs(name)
    return Run(folder)


def lines(run: Run) -> list[dict]:
    return [line for line in read_metrics(run.metrics) if line["step"]]


def distances(run: Run) -> dict[str, float]:
    """The distance that each weight of a whole model has moved."""
    before, after = (
        load_file(Path(folder) / "model.safetensors")
        for folder in (shipped("runner://model/tiny"), run.model)
    )
    return {name: (after[name] - before[name]).abs().max().item() for name in before}


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_users_project_trains_with_a_part_of_each_kind(runner, project, variant):
    project("allow=[my_lab]", *WORDS, *VARIANTS[variant], *SHORT.get(variant, ()))
    run = the_run(runner)
    assert run.status()["state"] == "finished"
    if variant == "sft":
        # tracker: each figure, those after the last step too, and then the end.
        rows = (run.folder / "ledger.tsv").read_text().splitlines()
        figures = [row.split("\t")[1:3] for row in rows[:-1]]
        assert [step for step, name in figures if name == "loss"] == ["1", "2", "3", "4"]
        assert [step for step, name in figures if name == "eval_loss"] == ["0", "4"]
        assert rows[-1] == "end"

    # dataset.map: rows that are nearly in order are left out, and the others say how far they are
    # from it.
    data = read_json(run.folder / "manifest.json")["data"]
    assert data["train"]["rows"] < 64
    assert data["eval"]["rows"] < 8
    # template: the tokenizer that was saved spells chats by it.
    assert (run.model / "chat_template.jinja").read_text() == (
        runner.folder / "my_lab/terse.jinja"
    ).read_text()
    # metrics, of samples and of outputs; the first by the column that dataset.map made.
    scores = read_json(run.folder / "scores.json")["after"]
    assert {"eval_sorted", "eval_sorted_hard", "eval_weakest"} <= set(scores)
    assert scores["eval_weakest"] < 0
    # callback
    diary = [
        json.loads(line)["event"] for line in (run.folder / "diary.jsonl").read_text().splitlines()
    ]
    assert (diary[0], diary.count("step_end")) == ("init_end", 4)
    assert {
        "train_end",
        "evaluate",
    } <= set(diary)
    # schedule: held for half of the steps, then down in a line.
    rates = [line["learning_rate"] for line in lines(run)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3, 5e-4])
    if variant == "dpo":
        # tuner: an adapter in the upper half only.
        weights = load_file(run.model / "adapter_model.safetensors")
        assert weights
        for name in weights:
            assert "layers.1." in name
            assert "q_proj" in name or "v_proj" in name
        # loss: of margins that are 0 at the start the squared distance from 1 / 2 beta.
        assert lines(run)[0]["loss"] == pytest.approx((1 / 0.2) ** 2, rel=1e-4)
    else:
        # tuner: the upper half of the layers and the norms.
        moved = {name for name, distance in distances(run).items() if distance}
        assert moved == {name for name in distances(run) if "layers.1." in name or "norm" in name}
        # optimizer: steps of one size, whatever the gradient; no weight moves further than the sum
        # of the rates.
        assert max(distances(run).values()) == pytest.approx(sum(rates), rel=1e-2)
    if variant == "grpo":
        # rewards, each under its name, the second with its weight.
        line = lines(run)[0]
        total = line["rewards/in_order/mean"] + 0.1 * line["rewards/brief/mean"]
        assert line["reward"] == pytest.approx(total, rel=1e-3)


@pytest.mark.dear("four trainings: with a part of each kind, and without each of three")
@pytest.mark.slow
def test_parts_that_make_batches_and_losses_change_the_first_loss(runner, project):
    parts = ("loss", "weight", "collator")
    losses = {}
    for part in ("nothing", *parts):
        without = [f"{part}=none"] if part in parts else []
        words = ("metric=none", "trainer.args.max_steps=1", f"name={part}", *without)
        project("allow=[my_lab]", *WORDS, *words)
        losses[part] = lines(the_run(runner, part))[0]["loss"]
    for part in parts:
        assert abs(losses[part] - losses["nothing"]) > 1e-2, part


@pytest.mark.slow
def test_a_user_launcher_starts_the_processes_and_reports_their_end(runner, project):
    words = ("allow=[my_lab]", *WORDS, "launcher=gentle", "metric=none")
    project(*words, "trainer.args.max_steps=2")
    run = the_run(runner)
    assert run.status()["state"] == "finished"
    assert read_json(run.folder / "manifest.json")["hardware"]["processes"] == 1
    assert Path(run.folder / "diary.jsonl").read_text().count("step_end") == 2


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """The plan of a command in a copy of the project: exit code and output."""
    shutil.copytree(
        EXAMPLE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(*words):
        code = main(["--config-dir", "conf", *words, "--dry-run"])
        return code, "".join(capsys.readouterr())

    return call


@pytest.mark.slow
def test_nothing_of_it_runs_without_being_allowed(plan):
    code, told = plan("experiment=everything")
    named = [line.split()[-4] for line in told.splitlines() if "may not run" in line]
    assert code == 2
    assert len(named) == 10
    for name in named:
        assert name.startswith("my_lab.")
    assert "allow=[my_lab]" in told


@pytest.mark.slow
def test_a_plan_imports_nothing_of_it(plan, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "my_lab"]:
        monkeypatch.delitem(sys.modules, name)
    Path("my_lab/__init__.py").write_text("raise SystemExit('imported')")
    assert plan("allow=[my_lab]", "experiment=everything")[0] == 0
    assert "my_lab" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_passes_the_check(plan, variant):
    assert plan("allow=[my_lab]", *WORDS, *VARIANTS[variant])[0] == 0


def test_the_run_lines_are_those_that_are_tested():
    text = (EXAMPLE / "conf/experiment/everything.yaml").read_text()
    for words in VARIANTS.values():
        for word in words:
            assert word in text
