"""A run's curves show what it logged, its page is true, and damage is reported, not raised."""

import json

import pytest
import yaml
from laid import lay_run

from runner.__main__ import main
from runner.config.composition import compose
from runner.io.files import display_path
from runner.report.compare import find_changed_keys
from runner.report.drawing import Curve, thinned, write_png
from runner.report.facts import command_of, first_rows
from runner.report.plot_run import run_pictures, write_plots
from runner.report.run_page import write_run_report
from runner.report.samples import completions_by_step
from runner.report.table import run_table
from runner.run import write_config
from runner.run.history import read_metrics, read_samples
from runner.run.record import RunRecord, read_run


@pytest.mark.slow
def test_there_is_one_picture_for_each_kind_of_metric(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"step": n, "loss": 1 / n, "learning_rate": 0.1, "eval_one_rewards/margins": n}
        for n in (1, 2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "lo')
    written = write_plots(RunRecord(tmp_path, {}, {}, {}))
    assert {file.stem for file in written} == {"loss", "learning_rate", "reward"}
    for file in written:
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size > 5000
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_nothing_logged_draws_nothing(tmp_path):
    assert write_plots(RunRecord(tmp_path, {}, {}, {})) == []
    assert not (tmp_path / "plots").exists()


@pytest.mark.slow
def test_the_curves_of_ppo_are_drawn_too(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logged = ("objective/scores", "objective/kl", "policy/sampled_entropy_avg", "loss/value_avg")
    logged += ("val/explained_variance",)
    rows = [{"step": n} | dict.fromkeys(logged, n) | {"eval_objective/scores": n} for n in (1, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = write_plots(RunRecord(tmp_path, {}, {}, {}))
    assert {file.stem for file in written} == {"reward", "kl", "entropy", "loss", "critic"}


def test_names_in_signs_of_mathematics_and_in_another_script_are_drawn_as_they_are(tmp_path):
    tmp_path = tmp_path / "^a$|^b{$" / "run"
    tmp_path.mkdir(parents=True)
    path = tmp_path / "metrics.jsonl"
    names = ("loss", "eval_$x_{$_loss", "eval_\u6570_loss", "eval_\x1b_loss")
    path.write_text(
        "".join(json.dumps({"step": step} | dict.fromkeys(names, step)) + "\n" for step in (1, 2))
    )
    (picture,) = write_plots(RunRecord(tmp_path, {}, {}, {}))
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_run_differs_from_the_options_that_it_chose_in_what_was_typed(tmp_path):
    words = ["trainer=dpo", "dataset=toy_sort", "kl_coef=0.3", "trainer.args.max_steps=5", "name=x"]
    folder = lay_run(tmp_path / "x" / "run", words=words)
    write_config(folder, compose(words).cfg)
    run = read_run(folder)
    changed = find_changed_keys(run)
    assert {row.key: row.ours for row in changed} == {
        "kl_coef": "0.3",
        "trainer.args.max_steps": "5",
    }
    assert [name for name, _ in first_rows(run.cfg)[0]][:2] == ["prompt", "chosen"]
    text = run_table(run, changed)
    assert "kl_coef=0.3 (0.1)" in text
    assert f"repeat    python -m runner {' '.join(words)}" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["dataset=local", "dataset.path='my rows.jsonl'", "learning_rate=1e-3"],
        ["dataset=local", "dataset.path=rows", "model=hub", "model.path=org/name"],
        [
            "trainer=ppo",
            "dataset=local",
            "dataset.path=rows.jsonl",
            "reward=model",
            "reward.model.path=x",
        ],
    ],
)
def test_a_run_with_rows_of_its_own_differs_in_what_was_typed(tmp_path, words):
    folder = lay_run(tmp_path / "x" / "run", words=words)
    write_config(folder, compose(words).cfg)
    changed = {row.key: (row.ours, row.default) for row in find_changed_keys(read_run(folder))}
    typed = dict(word.split("=", 1) for word in words if "." in word.partition("=")[0])
    assert (
        changed.items() >= {key: (text.strip("'"), "\u2014") for key, text in typed.items()}.items()
    )
    assert changed.get("learning_rate", ("1e-3", ""))[0] == "1e-3"


def test_a_run_that_does_not_say_how_it_was_made_is_continued(tmp_path):
    folder = lay_run(tmp_path / "x" / "run", words=["-m", "seed=0,1"])
    run = read_run(folder)
    assert find_changed_keys(run) is None
    assert command_of(run) == f"python -m runner.launch {folder}"


@pytest.mark.slow
def test_a_run_page_shows_samples_of_the_first_and_last_step(tmp_path):
    folder = lay_run(
        tmp_path / "x" / "run", after={"eval_exact": 0.5}, lines=[{"step": 1, "loss": 1.0}]
    )
    rows = [
        {"step": step, "prompt": [{"role": "user", "content": "p<i>"}], "completion": f"c{step}"}
        for step in range(40)
    ]
    dense = [{**row, "score": row["step"] / 4} for row in rows]
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "completions.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in dense)
    )
    (folder / "completions.jsonl").write_text(json.dumps(rows[0]) + "\n")
    (prompt,) = completions_by_step(read_run(folder))
    assert prompt.text == "p<i>"
    assert [cell.sample["completion"] for cell in prompt.cells] == [
        "c0",
        "c8",
        "c16",
        "c23",
        "c31",
        "c39",
    ]
    page = write_run_report(run := read_run(folder), find_changed_keys(run))
    text = page.read_text()
    changed = page.stat().st_mtime_ns
    assert "<b>9.75</b>" in text
    assert "p&lt;i&gt;" in text
    assert "eval_<wbr>exact" in text
    assert "<svg" in text
    assert text.count("<script") == 2
    write_run_report(run, find_changed_keys(run))
    assert page.stat().st_mtime_ns == changed


def test_a_unicode_line_separator_ends_no_row(tmp_path):
    row = {"step": 1, "prompt": "p", "completion": "one\u2028two\x85three"}
    (tmp_path / "completions.jsonl").write_text(
        json.dumps(row, ensure_ascii=False) + "\n{" + "[" * 99999
    )
    assert read_samples(tmp_path) == [row]


def test_a_folder_with_nothing_readable_has_a_page_too(tmp_path):
    folder = tmp_path / "x" / "run"
    folder.mkdir(parents=True)
    for name in (
        "config.yaml",
        "status.json",
        "manifest.json",
        "scores.json",
        "metrics.jsonl",
        "completions.jsonl",
    ):
        (folder / name).write_bytes(b"\xff[1, {")
    run = read_run(folder)
    assert run.state == "unknown"
    assert "config.yaml cannot be read" in run.cause
    assert (
        "manifest.json cannot be read" in write_run_report(run, find_changed_keys(run)).read_text()
    )


def test_long_curves_are_averaged_not_cut():
    curve = thinned(Curve(list(range(1000)), [float(step % 2) for step in range(1000)]), 100)
    assert len(curve.steps) == 100
    assert set(curve.values) == {0.5}
    assert curve.steps[0] == 4.5


@pytest.mark.slow
def test_a_stranger_s_run_cannot_write_a_line_of_its_own_into_what_is_printed(
    tmp_path, monkeypatch, capsys
):
    evil = "a\x1b[2J\u202e\nnext      rm -rf home"
    monkeypatch.chdir(tmp_path)
    for name in ("one", f"two {evil}"):
        lay_run(tmp_path / "outputs" / "x" / name)
    folder = tmp_path / "outputs" / "x" / f"two {evil}"
    cfg = yaml.safe_load((folder / "config.yaml").read_text())
    cfg |= {"seed": evil, evil: 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(cfg))
    status = json.loads((folder / "status.json").read_text()) | {"state": evil, "cause": evil}
    (folder / "status.json").write_text(json.dumps(status))
    for words in (
        ["report"],
        ["report", str(folder)],
        ["report", "outputs/x"],
        ["diff", str(folder), "outputs/x/one"],
    ):
        main(words)
        text = "".join(capsys.readouterr())
        assert "\x1b" not in text and "\u202e" not in text, words
        assert not [line for line in text.split("\n") if line.startswith("next      rm")], words
    assert display_path(folder).isprintable()


@pytest.mark.slow
def test_pictures_that_share_a_figure_are_those_of_figures_of_their_own(tmp_path):
    lines = [{"step": step, "loss": 1 / step, "rewards/accuracies": 0.5} for step in range(1, 9)]
    lines[-1] |= {"eval_loss": 0.2, "rewards/margins": 0.1, "grad_norm": 3.0}
    written = {}
    for one_by_one in (False, True):
        folder = tmp_path / str(one_by_one)
        for picture in run_pictures(lines, one_by_one=one_by_one):
            write_png(picture, folder, "name/run", has_numbers=True)
        written[one_by_one] = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert written[True] == written[False]
    assert len(written[True]) == 4
