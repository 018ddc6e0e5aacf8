"""Runs of one name side by side: right numbers, every state, and no folder that breaks the page."""

import csv
import html
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from laid import lay_run, lay_sweep, set_status, wave
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent / "fault"))

import browser

from runner.command.report import listing, main, report
from runner.errors import ConfigError, FolderError
from runner.io.files import files_of
from runner.launch.ends import print_end
from runner.report import plot_run, plot_sweep
from runner.report.axis import axes_of
from runner.report.drawing import COLOURS, to_svg, write_png
from runner.report.index import INDEX
from runner.report.page import SCRIPT
from runner.report.plot_run import run_pictures
from runner.report.plot_sweep import MAX_LETTERS, band, heat_cells, style_settings, sweep_pictures
from runner.report.ranking import headline_of, score_rows
from runner.report.score import informative, is_more_better
from runner.report.selection import summarise
from runner.report.sweep import count_states
from runner.report.sweep_page import write_report
from runner.report.table import sweep_table, to_cell, to_csv, to_jsonl
from runner.report.verdict import describe_decline, list_changes
from runner.run.record import RunRecord, read_run

SEEDS = {(0.1, 1e-4, 0): 0.5, (0.1, 1e-4, 1): 0.7, (0.5, 1e-4, 0): 0.8, (0.5, 1e-4, 1): 0.9}
GRID = {(kl, rate, 0): kl + 10 * rate for kl in (0.1, 0.2, 0.3) for rate in (0.01, 0.02)}


def joined(text: str) -> str:
    """A text without its line ends."""
    return " ".join(text.split())


def test_figures_of_the_machine_are_not_offered_as_an_objective():
    names = [
        "loss",
        "time/rollout",
        "memory/peak_gb",
        "eval_time/rollout",
        "eval_runtime",
        "eval_f1",
    ]
    assert informative(names) == ["loss", "eval_f1"]


def test_seeds_become_a_mean_and_a_spread(tmp_path):
    summary = summarise(lay_sweep(tmp_path / "kl", SEEDS))
    assert [axis.key for axis in summary.axes] == ["kl_coef"]
    assert summary.seeds == [0, 1]
    best, second = summary.settings
    assert best.values == {"kl_coef": 0.5}
    assert best.mean("eval_exact") == pytest.approx(0.85)
    assert best.sd("eval_exact") == pytest.approx(math.sqrt(0.005))
    assert second.sd("eval_loss") == pytest.approx(0.02**0.5)
    assert summary.objective.name == "eval_exact"
    assert summary.objective.maximise
    text = joined(sweep_table(summary))
    assert "0.85 ± 0.071" in text
    assert "over 2 seeds" in text
    assert (
        "python -m runner -m trainer=dpo kl_coef=0.5 learning_rate=0.0001 name=kl seed=0,1" in text
    )


DEEP = "[" * 100_000 + "]" * 100_000
STRANGE = {
    "a line that is nested deep": ("metrics.jsonl", f'{{"step": 6, "loss": {DEEP}}}'),
    "a step that is no index": ("metrics.jsonl", f'{{"step": {10**30}, "loss": 1}}'),
    "figures without a difference": (
        "metrics.jsonl",
        '{"step": 6, "loss": 1e308}\n{"step": 7, "loss": -1e308}',
    ),
    "a number that is no float": ("metrics.jsonl", f'{{"step": 6, "loss": {10**400}}}'),
    "a number of too many digits": ("metrics.jsonl", f'{{"step": 1{"0" * 5000}, "loss": 1}}'),
    "a manifest nested deep": ("manifest.json", f'{{"versions": {DEEP}}}'),
    "a manifest of other kinds": (
        "manifest.json",
        '{"versions": ["a"], "git": 1, "uses": 2, "starts": "x", "command": 7}',
    ),
    "a status of other kinds": (
        "status.json",
        f'{{"state": "finished", "step": {10**30}, "cause": [1], "updated": 5}}',
    ),
    "scores that are no floats": (
        "scores.json",
        f'{{"before": [], "after": {{"eval_exact": {10**400}}}}}',
    ),
    "samples of other kinds": (
        "completions.jsonl",
        '{"step": 1, "prompt": [1, [2]], "completion": {"a": 1}}',
    ),
    "a score that is text": (
        "completions.jsonl",
        '{"step": 1, "prompt": "a", "completion": "b", "score": "x"}',
    ),
    "a key that is a date": (
        "config.yaml",
        "{format: 2, name: kl, seed: 0, 2020-01-01: {2021-01-01: 1}}",
    ),
    "scores nested deep": ("scores.json", '{"after": ' + '{"a": ' * 700 + "1" + "}" * 701),
    "a status nested deep": (
        "status.json",
        '{"state": "finished", "host": ' + '{"a": ' * 700 + "1" + "}" * 701,
    ),
    "arguments that are a list": (
        "config.yaml",
        "{format: 2, name: kl, seed: 0, trainer: {args: [1]}}",
    ),
}


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), STRANGE.values(), ids=STRANGE)
def test_a_broken_run_of_a_stranger_does_not_break_the_report(tmp_path, name, text):
    group = lay_sweep(tmp_path / "kl", SEEDS, logged=True)
    run = sorted(group.iterdir())[0]
    before = run / name if name.endswith("jsonl") and (run / name).exists() else None
    (run / name).write_text(f"{before.read_text() if before else ''}{text}\n")
    assert "0.85 ± 0.071" in joined(report(group))
    assert report(run)


@pytest.mark.slow
def test_the_end_of_a_sweep_escapes_texts_of_strangers(tmp_path, capsys):
    group = lay_sweep(tmp_path / "kl", SEEDS)
    lay_run(group / "another", kl_coef="\x1b[31m")
    print_end([group / "another"], 0, report)
    stdout = capsys.readouterr().out
    assert "\x1b" not in stdout
    assert "␛[31m" in stdout


@pytest.mark.slow
def test_the_label_of_a_setting_is_drawn_in_a_moment(tmp_path):
    group = lay_sweep(tmp_path / "kl", SEEDS, peft="x" * 200_000)
    lay_run(group / "another", peft="y")
    assert (
        max(len(styled.label) for styled in style_settings(summarise(group)) if styled.label)
        <= MAX_LETTERS
    )


@pytest.mark.slow
def test_pictures_are_neither_written_nor_deleted_through_a_link(tmp_path):
    group = lay_sweep(tmp_path / "kl", SEEDS, logged=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "holiday.png").write_text("mine")
    (group / "plots").symlink_to(tmp_path / "mine")
    with pytest.raises(FolderError, match="a link to"):
        report(group)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["holiday.png"]
    (group / "plots").unlink()
    (group / "plots").mkdir()
    (group / "plots" / "loss.part").symlink_to(tmp_path / "mine" / "holiday.png")
    report(group)
    assert (tmp_path / "mine" / "holiday.png").read_text() == "mine"


@pytest.mark.slow
def test_two_reports_of_a_name_at_once_both_succeed(tmp_path, monkeypatch):
    group = lay_sweep(tmp_path / "kl", SEEDS, logged=True)
    draw = Figure.savefig

    def meanwhile(figure, file, format, **how):
        draw(figure, file, format=format, **how)
        if format == "png":  # another report interferes before this picture has its name
            monkeypatch.undo()
            report(group)

    monkeypatch.setattr(Figure, "savefig", meanwhile)
    report(group)
    assert Figure.savefig is draw
    assert (group / "report.html").exists()
    assert {path.suffix for path in (group / "plots").iterdir()} == {".png"}


def test_no_line_but_a_command_or_a_heading_is_longer_than_the_terminal(tmp_path):
    group = lay_sweep(tmp_path / "wide", GRID)
    folder = lay_run(group / ("x" * 120), state="failed", kl_coef=9.0)
    set_status(folder, cause="data\n  rows\n    found     " + "y" * 200)
    for width in (80, 60):
        lines = sweep_table(summarise(group), width).splitlines()
        assert lines[-1].startswith("model     ")
        assert lines[-1].endswith("/model")
        assert max(len(line) for line in lines if not line.startswith(("repeat", "model"))) <= width


def test_keys_that_follow_from_an_axis_are_no_axes():
    def config(target: str, rate: float, beta: float | None, rank: int) -> dict:
        args = {"beta": beta, "learning_rate": rate} if beta else {"learning_rate": rate}
        trainer = {"_target_": target, "form": target, "args": args}
        return {
            "trainer": trainer,
            "learning_rate": rate,
            "kl_coef": beta,
            "peft": {"_target_": "p.Lora", "r": rank},
        }

    dpo = ("trl.DPOTrainer", 1e-6, 0.1)
    sft = ("trl.SFTTrainer", 2e-5, None)
    axes = {
        axis.key: axis
        for axis in axes_of([config(*options, rank) for options in (dpo, sft) for rank in (8, 16)])
    }
    assert axes["trainer"].levels == ["DPO", "SFT"]
    assert axes["peft.r"].levels == [8, 16]
    assert len(axes) == 2
    assert {"learning_rate", "kl_coef", "trainer.form", "trainer.args.beta"} <= set(
        axes["trainer"].also
    )


def test_an_option_is_named_as_typed():
    nodes = [
        None,
        {"_target_": "peft.LoraConfig", "use_dora": False},
        {"_target_": "peft.LoraConfig", "use_dora": True},
    ]
    (axis,) = axes_of([{"peft": node} for node in nodes], [{}, {"peft": "lora"}, {"peft": "dora"}])
    assert axis.name == "peft"
    assert axis.column == ("none", "lora", "dora")


def test_two_models_are_named_by_their_paths():
    nodes = [
        {"path": path, "tokenizer": {"path": path}, "dtype": dtype}
        for path, dtype in (("a/b", "f"), ("c/d", "g"))
    ]
    (axis,) = axes_of([{"model": node} for node in nodes])
    assert axis.name == "model.path"
    assert set(axis.also) == {"model.tokenizer.path", "model.dtype"}


def test_ties_and_close_calls_are_reported(tmp_path):
    scores = {
        (0.1, 1, 0): 0.5,
        (0.1, 1, 1): 0.7,
        (0.2, 1, 0): 0.5,
        (0.2, 1, 1): 0.7,
        (0.3, 1, 0): 0.59,
        (0.3, 1, 1): 0.6,
    }
    summary = summarise(lay_sweep(tmp_path / "tie", scores))
    assert (
        "tied with 1 other: kl_coef=0.2 within one standard deviation of 1 other: kl_coef=0.3"
        in joined(sweep_table(summary))
    )


def test_one_longer_and_one_interrupted_run_are_no_axis(tmp_path):
    """Each is shown as what it is, and the rows for other programs have a column for that."""
    group = lay_sweep(
        tmp_path / "odd",
        {(kl, 1e-4, seed): kl for kl in (0.1, 0.2, 0.3) for seed in (0, 1)},
        extra=20,
    )
    lay_sweep(group, {(0.2, 1e-4, 7): 0.9}, extra=60, other="x")
    lay_sweep(group, {(0.4, 1e-4, 7): 0.9}, extra=2000)
    set_status(group / "kl-0.4+lr-0.0001+seed-7", state="interrupted")
    summary = summarise(group)
    assert [axis.key for axis in summary.axes] == ["kl_coef"]
    labels = [setting.label for setting in summary.settings]
    assert labels[:2] == ["kl_coef=0.2 extra=60 other=x", "kl_coef=0.3"]
    assert labels[-1] == "kl_coef=0.4 extra=2000"
    assert "\n  0.2 extra=60 other=x" in sweep_table(summary)
    rows = {
        (row["kl_coef"], row["extra"], row["other"])
        for row in csv.DictReader(to_csv(summary).splitlines())
    }
    assert rows == {
        *((kl, "20", "") for kl in ("0.1", "0.2", "0.3")),
        ("0.2", "60", "x"),
        ("0.4", "2000", ""),
    }
    pair = lay_sweep(
        tmp_path / "pair", {(0.1, 1e-4, 0): 0.5, (0.1, 1e-4, 1): 0.6, (0.2, 1e-4, 0): 0.7}
    )
    assert [axis.key for axis in summarise(pair).axes] == ["kl_coef"], (
        "there is nothing else to compare"
    )


@pytest.mark.slow
def test_the_change_of_the_objective_says_where_it_is_worse(tmp_path):
    group = lay_sweep(tmp_path / "down", {(0.1, 1e-4, 0): 0.5, (0.2, 1e-4, 0): 0.25})
    for name, before in (("kl-0.1+lr-0.0001+seed-0", 0.3), ("kl-0.2+lr-0.0001+seed-0", 0.4)):
        scores = json.loads((group / name / "scores.json").read_text())
        scores["before"] = {
            "eval_exact": before,
            "eval_loss": 0.5,
            "eval_objective/kl": 0.0,
            "eval_other": 2.0,
        }
        scores["after"] |= {"eval_objective/kl": 0.5, "eval_other": 1.0}
        (group / name / "scores.json").write_text(json.dumps(scores))
    text = report(group)
    assert re.search(r"0\.5 +\+0\.2 .*\n  0\.2 +0\.25 +-0\.15 worse ", text), text
    assert "the same in all runs: objective/kl 0.5, other 1" in joined(text)
    page = (group / "report.html").read_text()
    assert '<td class="n worse">-0.15 worse</td>' in page
    assert "The same in all runs: eval_objective/kl 0.5" in page
    text = report(group / "kl-0.2+lr-0.0001+seed-0")
    lines = {
        line.split()[0]: line.split()[1:]
        for line in text.splitlines()
        if line.startswith("  eval_")
    }
    assert next(iter(lines)) == "eval_exact"
    assert lines["eval_exact"] == [
        "0.4",
        "0.25",
        "-0.15",
        "worse",
    ]
    assert lines["eval_loss"] == ["0.5", "0.75", "+0.25", "worse"], "lower is better"
    assert lines["eval_objective/kl"] == ["0", "0.5", "+0.5"]
    assert lines["eval_other"] == [
        "2",
        "1",
        "-1",
    ]


@pytest.mark.slow
def test_a_tie_is_reported_beside_the_best(tmp_path):
    group = lay_sweep(
        tmp_path / "tie", {(kl, 1e-4, 0): 0.435 + kl / 10**6 for kl in (0.1, 0.2, 0.3, 0.4, 0.5)}
    )
    told = "tied with 4 others: kl_coef=0.4, kl_coef=0.3, kl_coef=0.2, ..."
    assert told in joined(report(group))
    assert f"{told.capitalize()}." in (group / "report.html").read_text()


def test_columns_without_room_are_named(tmp_path):
    group = tmp_path / "wide"
    for place in range(12):
        scores = {"eval_exact": place, **{f"eval_score_{name}": place * 2 for name in "abc"}}
        lay_run(
            group / f"r{place}",
            after=scores,
            **{f"key_{name}": f"{'x' * 20}{name}{place}" for name in "abcd"},
        )
    for width in (80, 60):
        lines = sweep_table(summarise(group), width).splitlines()
        assert max(len(line) for line in lines if not line.startswith(("repeat", "model"))) <= width
        assert any(line.startswith("  no room for ") for line in lines)
        assert "score_c" in joined("\n".join(lines))


def test_one_lucky_seed_does_not_beat_several(tmp_path):
    summary = summarise(lay_sweep(tmp_path / "lucky", SEEDS | {(0.9, 1e-4, 0): 0.99}))
    assert summary.settings[0].values == {"kl_coef": 0.9}
    assert summary.best.values == {"kl_coef": 0.5}
    assert "left out with one seed: kl_coef=0.9" in joined(sweep_table(summary))


def test_the_objective_can_be_chosen_and_turned(tmp_path):
    group = lay_sweep(tmp_path / "kl", SEEDS)
    low = summarise(group, "loss")
    assert low.objective.name == "eval_loss"
    assert not low.objective.maximise
    assert low.best.values == {"kl_coef": 0.5}
    assert summarise(group, "eval_loss", "max").best.values == {"kl_coef": 0.1}
    logged = summarise(lay_sweep(tmp_path / "logged", SEEDS, logged=True), "reward")
    assert logged.best.mean("reward") == pytest.approx(5 * 0.85)
    with pytest.raises(ConfigError, match="direction"):
        summarise(group, direction="up")
    with pytest.raises(ConfigError, match="objective=eval_exact"):
        report(group, objective="eval_exat")


def test_the_objective_is_that_of_the_configuration(tmp_path):
    args = {"metric_for_best_model": "margin", "greater_is_better": False}
    for kl, margin in ((0.1, 5.0), (0.2, 4.0)):
        after = {"eval_loss": 0.1, "eval_margin": margin}
        lay_run(tmp_path / "best" / f"{kl}", after=after, kl_coef=kl, trainer={"args": args})
    summary = summarise(tmp_path / "best")
    assert summary.objective.name == "eval_margin"
    assert summary.best.values == {"kl_coef": 0.2}
    lay_run(tmp_path / "rl" / "a", after={"eval_loss": 0.1, "eval_reward": 0.4})
    assert summarise(tmp_path / "rl").objective.name == "eval_reward"
    lay_run(
        tmp_path / "bare" / "a",
        lines=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}],
        after={},
    )
    assert summarise(tmp_path / "bare").best.mean("loss") == 1.0


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("metric", "metric_line", "best", "message"),
    [
        ({"delay": {"better": "lower"}}, {}, 0.1, "lower is better"),
        ({"delay": {"better": "higher"}}, {}, 0.2, "higher is better"),
        ({"delay": {"better": "lower"}}, {"objective": "eval_delay"}, 0.1, "lower is better"),
        (
            {"delay": {"better": "lower"}},
            {"objective": "delay", "direction": "max"},
            0.2,
            "higher is better",
        ),
        (
            {"rise": {"better": "lower"}, "loss_of_rise": {"better": "higher"}},
            {},
            0.1,
            "lower is better",
        ),
    ],
)
def test_a_metric_says_which_way_is_up(
    tmp_path, monkeypatch, capsys, metric, metric_line, best, message
):
    """By its own ``better``, or, without one, by its name."""
    monkeypatch.chdir(tmp_path)
    for kl in (0.1, 0.2):
        after = {f"eval_{name}": 10 * kl for name in metric}
        lay_run(tmp_path / "outputs" / "kl" / f"{kl}", after=after, kl_coef=kl, metric=metric)
    assert (
        main(
            SimpleNamespace(
                verb="report",
                runs=["kl"],
                overrides=[f"{key}={value}" for key, value in metric_line.items()],
            )
        )
        == 0
    )
    assert message in joined(capsys.readouterr().out)
    assert summarise(tmp_path / "outputs" / "kl", **metric_line).best.values == {"kl_coef": best}


def test_values_that_are_no_numbers_are_no_scores(tmp_path):
    group = lay_sweep(tmp_path / "nan", SEEDS)
    (group / "kl-0.5+lr-0.0001+seed-0" / "scores.json").write_text(
        '{"after": {"eval_exact": NaN, "eval_loss": null}}'
    )
    summary = summarise(group)
    setting = next(setting for setting in summary.settings if setting.values == {"kl_coef": 0.5})
    assert setting.scores["eval_exact"] == [0.9]
    assert len(setting.finished) == 2
    assert setting.sd("eval_exact") is None
    assert summary.best.values == {"kl_coef": 0.1}
    assert "NaN" not in to_jsonl(summary)


STATES = {
    "failed": {
        "cause": "sick run\n  trainer.loss\n    found     loss is nan\n    expected  a number"
    },
    "interrupted": {"cause": "interrupted\n  SIGTERM\n    found     asked to stop"},
    "running": {"pid": os.getpid(), "host": socket.gethostname()},
    "created": {"step": 0, "max_steps": 0},
}


BAD = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def partial(tmp_path_factory) -> Path:
    """A group with a run in every state, every kind of damage, and markup wherever a user's text
    can be.
    """
    bad = {"model": {"path": BAD}, "dataset": {"path": f"{BAD}&"}}
    group = lay_sweep(tmp_path_factory.mktemp("outputs") / "partial<b>", SEEDS, logged=True, **bad)
    samples = [{"step": step, "prompt": BAD, "completion": f"{BAD}{step}"} for step in (0, 4)]
    for run in group.iterdir():
        (run / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
    set_status(
        lay_run(group / "x<script>", state="failed", learning_rate=BAD, **{BAD: 1}),
        cause=f"{BAD} stopped it",
    )
    for place, (state, changes) in enumerate(STATES.items()):
        set_status(
            lay_run(group / state, state=state, kl_coef=1.0, seed=place, learning_rate=1e-4),
            **changes,
        )
    gone = subprocess.Popen(["true"])
    gone.wait()
    set_status(
        lay_run(group / "lost", state="running", kl_coef=2.0),
        pid=gone.pid,
        host=socket.gethostname(),
    )
    lay_run(group / "torn-status", kl_coef=3.0)
    (group / "torn-status" / "status.json").write_text('{"state": "fin')
    torn = lay_run(group / "torn-config", after={"eval_exact": 1.0})
    (torn / "config.yaml").write_text("a: [1\n b: }")
    (torn / "scores.json").write_text("[1, 2]")
    (torn / "metrics.jsonl").write_text(
        '3\n{"loss": 1}\n{"step": 1, "loss": null}\n{"step": 2, "lo\n\xff'
    )
    (torn / "completions.jsonl").write_text(
        '{"step": 0}\n{"step": "x", "prompt": 1, "completion": 2}\n[]\n'
    )
    write_report(summarise(group))
    return group


@pytest.mark.slow
def test_every_state_is_shown_as_what_it_is(partial):
    summary = summarise(partial)
    assert count_states(summary.runs) == {
        **{"finished": 5, "running": 1, "interrupted": 1, "failed": 2},
        **{"lost": 1, "created": 1, "unknown": 1},
    }
    assert summary.best.values["kl_coef"] == 0.5
    text = joined(sweep_table(summary))
    told = [
        "sick run: trainer.loss: loss is nan",
        "asked to stop",
        "last heard of 2026-01-02 03:04 UTC",
        "not started",
    ]
    told += [
        "its process ended without a message",
        "status.json cannot be read",
        "config.yaml cannot be read; scores.json cannot",
    ]
    for words in told:
        assert words in text
    page = (partial / "report.html").read_text()
    for words in told:
        assert words in page


@pytest.mark.slow
def test_the_rows_are_in_csv_and_in_json_lines(partial):
    summary = summarise(partial)
    rows = list(csv.DictReader(to_csv(summary).splitlines()))
    assert len(rows) == 12
    assert rows[0]["run"] == "kl-0.5+lr-0.0001+seed-0"
    by_name = {row["run"]: row for row in rows}
    assert by_name["failed"]["state"] == "failed"
    assert by_name["failed"]["eval_exact"] == ""
    assert (
        by_name["kl-0.1+lr-0.0001+seed-1"] | {"kl_coef": "0.1", "seed": "1", "eval_exact": "0.7"}
        == by_name["kl-0.1+lr-0.0001+seed-1"]
    )
    formulas = ["=HYPERLINK(1)", "@SUM(1)", "+1+cmd", "\t=1"]
    texts = ["-2e-3", "-0.5", "a=b"]
    assert [to_cell(text) for text in formulas + texts] == [
        *(f"'{text}" for text in formulas),
        *texts,
    ]
    assert to_cell("a\r=1") == "a␍=1"
    lines = [json.loads(line) for line in to_jsonl(summary).splitlines()]
    assert {line["run"]: line["state"] for line in lines}["torn-status"] == "unknown"
    assert lines[0]["before"]["eval_exact"] == 0.0
    assert lines[0]["after"]["eval_exact"] == lines[0]["objective"]


@pytest.mark.slow
def test_texts_from_a_folder_are_escaped_in_html(partial):
    page = (partial / "report.html").read_text()
    assert page.count("<script") == 2
    assert "partial<b>" not in page
    for words in (f"{BAD}4", f"{BAD} stopped it", "x<script>"):
        assert html.escape(words) in page


@pytest.mark.slow
def test_the_page_needs_nothing_from_outside(partial):
    page = (partial / "report.html").read_text().replace(SCRIPT, "")
    assert not re.findall(r"(?:src|href)=\"(?!#)[^\"]*\"|https?://|@import|<link", page)
    assert "default-src 'none'" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "pictures share an id"
    for used in re.findall(r'(?:href="#|url\(#)([^")]+)', page):
        assert used in ids


@pytest.mark.slow
def test_a_sweep_of_sixteen_long_runs_is_a_light_page(tmp_path):
    group = tmp_path / "long"
    for place in range(16):
        cfg = {"kl_coef": place // 4, "learning_rate": place % 4}
        lay_run(group / f"r{place}", after={"eval_exact": place / 16}, lines=wave(1000), **cfg)
    page = write_report(summarise(group))
    assert page.stat().st_size < 1_000_000
    assert {path.stem for path in (group / "plots").iterdir()} == {
        *(
            "objective-kl_coef",
            "objective-learning_rate",
            "heat-learning_rate-kl_coef",
            "reward-kl",
        ),
        *("curve-reward", "curve-loss", "curve-kl"),
    }


@pytest.mark.slow
def test_a_report_is_written_again_only_where_something_changed(tmp_path):
    group = lay_sweep(tmp_path / "kl", SEEDS)
    page = write_report(summarise(group))
    before = {
        path: path.stat().st_mtime_ns
        for path in group.rglob("*")
        if path.is_file() and path.name != INDEX
    }
    write_report(summarise(group))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    set_status(group / "kl-0.1+lr-0.0001+seed-0", state="failed", cause="gone")
    write_report(summarise(group))
    assert "gone" in page.read_text()
    assert page.stat().st_mtime_ns > before[page]
    turned = write_report(summarise(group, "eval_loss")).read_text()
    assert "Lower is better" in turned


@pytest.mark.slow
def test_the_same_folders_make_the_same_bytes(tmp_path):
    group = lay_sweep(tmp_path / "kl", SEEDS)
    write_report(summarise(group))
    first = files_of(group)
    (group / "report.html").unlink()
    write_report(summarise(group))
    assert {name: digest for name, digest in files_of(group).items() if name != INDEX} == first


@pytest.mark.slow
def test_pictures_of_an_earlier_report_go(tmp_path):
    group = lay_sweep(tmp_path / "kl", GRID)
    write_report(summarise(group))
    shutil.rmtree(group / "kl-0.1+lr-0.01+seed-0")
    for folder in group.glob("*lr-0.02*"):
        shutil.rmtree(folder)
    write_report(summarise(group))
    assert not list((group / "plots").glob("heat-*"))


def test_a_band_is_the_mean_and_deviation_of_the_seeds_at_each_step(tmp_path):
    for seed, top in ((0, 1.0), (1, 3.0)):
        steps = range(1, 3 + seed)  # the second seed came further
        lay_run(
            tmp_path / "g" / f"{seed}",
            seed=seed,
            lines=[{"step": n, "loss": n * top} for n in steps],
        )
    runs = [read_run(folder) for folder in sorted((tmp_path / "g").iterdir())]
    points = band(runs, "loss")
    assert points.steps == [1, 2, 3]
    assert points.values == [2.0, 4.0, 9.0]
    assert points.deviations == pytest.approx([2**0.5, 8**0.5, 0.0])


def test_a_heat_map_has_the_scores_in_their_cells(tmp_path):
    summary = summarise(lay_sweep(tmp_path / "grid", GRID))
    axes = {axis.name: axis for axis in summary.axes}
    cells = heat_cells(summary, "eval_exact", axes["kl_coef"], axes["learning_rate"])
    assert cells[(2, 1)] == [pytest.approx(0.5)]
    assert len(cells) == 6
    torn = lay_run(tmp_path / "grid" / "torn", after={"eval_exact": 1.0})
    (torn / "config.yaml").write_text("a: [1\n b: }")
    assert (
        heat_cells(
            summarise(tmp_path / "grid"), "eval_exact", axes["kl_coef"], axes["learning_rate"]
        )
        == cells
    )
    for status in (tmp_path / "grid").glob("kl-*/status.json"):
        status.write_text('{"state": "interrupted"}')
    assert "heat-learning_rate-kl_coef" in sweep_pictures_of(tmp_path / "grid"), (
        "no score but of the torn one"
    )
    assert [picture.name for picture in sweep_pictures(summary)][2] == "heat-learning_rate-kl_coef"


def test_a_picture_in_a_page_says_what_its_axes_say(tmp_path):
    lines = [{"step": step, "loss": 0.69 + step / 10000} for step in range(4)]
    picture = sweep_pictures_of(lay_run(tmp_path / "g" / "a", lines=lines).parent)["curve-loss"]
    svg = to_svg(picture, "x")
    (axes,) = picture.figure.axes
    told = {label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())}
    written = {text for text in re.findall(r">([^<]+)</text>", svg) if text not in ("step", "loss")}
    assert written <= told
    assert len(written) == 4 + sum("." in text for text in written)


def lay_curves(group: Path, **curves: list) -> dict:
    """The plots of runs that logged these values, one tenth of the training apart."""
    for name, values in curves.items():
        lines = [
            {"step": 10 * step, "eval_exact": value, "reward": value}
            for step, value in enumerate(values)
        ]
        lay_run(group / name, after={"eval_exact": values[-1]}, lines=lines, kl_coef=name)
    return sweep_pictures_of(group)


def test_the_headline_has_a_dashed_line_where_it_was_measured_twice(tmp_path):
    lines = [{"step": 0, "eval_exact": 0.25}, *({"step": n, "loss": 1 / n} for n in (1, 2, 3))]
    folder = lay_run(
        tmp_path / "g" / "a",
        after={"eval_exact": 0.5},
        lines=[*lines, {"step": 3, "eval_exact": 0.5}],
    )
    (picture, loss) = run_pictures(read_run(folder).lines, headline_of(read_run(folder)))
    assert (picture.name, loss.name) == ("eval_exact", "loss")
    (points,) = picture.figure.axes[0].lines
    assert points.get_linestyle() == "--"
    assert points.get_marker() == "o"
    assert list(points.get_ydata()) == [0.25, 0.5]
    assert points.get_markerfacecolor() == "none", "held-out points are hollow"
    assert loss.figure.axes[0].lines[0].get_linestyle() != "None", "three points are a line"
    names = [picture.name for picture in sweep_pictures(summarise(folder.parent))]
    assert names == ["curve-eval_exact", "curve-loss"]


@pytest.mark.slow
def test_coinciding_curves_differ_in_more_than_colour(tmp_path):
    same = [0.1, 0.2, 0.3, 0.4]
    curve = [0.4, 0.3, 0.2, 0.1]
    picture = lay_curves(tmp_path / "lines", a=same, b=same, c=curve)["curve-eval_exact"]
    lines = picture.figure.axes[0].lines
    assert (
        len({line.get_marker() for line in lines})
        == len({str(line._dash_pattern) for line in lines})
        == 3
    )
    assert len({line.get_markersize() for line in lines}) == 3
    page = write_report(summarise(tmp_path / "lines")).read_text()
    for sign, name in zip("●■▲", "abc", strict=True):
        assert f">{sign}</i>kl_coef={name}</span>" in page
    pictures = lay_curves(tmp_path / "points", a=[0.1, 0.2], b=[0.1, 0.2])
    joined = pictures["curve-eval_exact"].figure.axes[0].lines
    assert {line.get_linestyle() for line in joined} == {"-", "--"}, "before and after training"
    pairs = pictures["curve-reward"].figure
    pairs.draw_without_rendering()
    first, second = (
        line.get_transform().transform(line.get_xydata()) for line in pairs.axes[0].lines
    )
    assert abs(first - second).max() > 5 and (first[:, 1] == second[:, 1]).all(), (
        "beside each other, as high"
    )


def test_one_long_run_runs_out_of_the_picture(tmp_path):
    curves = {name: [0.1, 0.2, 0.3] for name in "abc"} | {"d": [0.1] * 40}
    axes = lay_curves(tmp_path / "long", **curves)["curve-eval_exact"].figure.axes[0]
    assert axes.get_xlim()[1] < 25
    assert axes.get_xlabel() == "step (1 setting beyond, to 390)"
    two = lay_curves(tmp_path / "two", a=[0.1, 0.2, 0.3], d=[0.1] * 40)[
        "curve-eval_exact"
    ].figure.axes[0]
    assert two.get_xlim()[1] > 390
    assert two.get_xlabel() == "step"


def test_equal_texts_of_numbers_are_drawn_at_one_place(tmp_path):
    axes = lay_curves(tmp_path / "flat", a=[0.149443, 0.149442, 0.1494425])[
        "curve-reward"
    ].figure.axes[0]
    low, high = axes.get_ylim()
    assert high - low > 0.001
    axes.figure.canvas.draw()
    for text in axes.get_yticklabels():
        assert "e" not in text.get_text()
        assert "−" not in text.get_text()


def test_a_share_is_drawn_from_0_to_1_and_a_percentage_as_it_is(tmp_path):
    pictures = lay_curves(tmp_path / "g", a=[0.5, 0.6, 0.62], b=[0.5, 0.4, 0.52])
    assert pictures["curve-eval_exact"].figure.axes[0].get_ylim() == (-0.03, 1.03)
    assert pictures["curve-reward"].figure.axes[0].get_ylim()[1] < 0.7
    data = plot_sweep.sweep_charts(summarise(tmp_path / "g"))
    assert {title: share for _, title, _, share in data["charts"]} == {
        "eval_exact": True,
        "reward": False,
    }
    percentages = lay_curves(tmp_path / "percent", a=[50, 60, 62], b=[50, 40, 52])
    assert percentages["curve-eval_exact"].figure.axes[0].get_ylim()[1] > 60
    (_, _, _, share), *_ = plot_sweep.sweep_charts(summarise(tmp_path / "percent"))["charts"]
    assert not share


@pytest.mark.slow
def test_numbers_are_shown_as_they_were_typed_and_sorted_as_numbers(tmp_path):
    rates = {"5e-5": 0.2, "1e-4": 0.3, "1.0e-3": 0.4, "": 0.1}
    for typed, score in rates.items():
        rate = float(typed or 0.0002)
        lay_run(
            tmp_path / "g" / f"rate-{rate}",
            after={"eval_exact": score},
            lines=[{"step": 1, "reward": 1.0}, {"step": 2, "reward": 2.0}],
            words=[f"learning_rate={typed}"] if typed else (),
            learning_rate=rate,
        )
    summary = summarise(tmp_path / "g", sort="learning_rate")
    assert [setting.label for setting in summary.listed] == [
        f"learning_rate={text}" for text in ("5e-5", "1e-4", "0.0002", "1.0e-3")
    ]
    table = sweep_table(summary)
    assert [line.split()[0] for line in table.splitlines()[5:9]] == [
        "5e-5",
        "1e-4",
        "0.0002",
        "1.0e-3",
    ]
    (setting,) = summarise(tmp_path / "g", where="learning_rate=0.001").settings
    assert setting.runs[0].experiment.learning_rate == 0.001
    picture = sweep_pictures_of(tmp_path / "g")["objective-learning_rate"]
    ticks = [text.get_text() for text in picture.figure.axes[0].get_xticklabels()]
    assert ticks == ["5e-5", "1e-4", "0.0002", "1.0e-3"]
    page = write_report(summary).read_text()
    assert ">★</i>" not in page
    for text in ticks:
        assert f"</i>{text}</td>" in page
        assert f"learning_rate={text}</span>" in page
    # A picture lies anywhere, and says whose it is.
    write_png(picture, tmp_path, "g")
    assert picture.figure.axes[0].get_title(loc="left") == "g"
    run = read_run(tmp_path / "g" / "rate-5e-05")
    with pytest.MonkeyPatch.context() as patch:
        titles = []
        patch.setattr(plot_run, "write_png", lambda *words, **_: titles.append(words[2]))
        plot_run.write_plots(run)
    assert set(titles) == {"g/rate-5e-05"}


def sweep_pictures_of(group: Path) -> dict:
    return {picture.name: picture for picture in sweep_pictures(summarise(group))}


@pytest.mark.slow
def test_a_table_needs_no_heavy_library():
    heavy = ("torch", "transformers", "matplotlib", "jinja2", "hydra")
    code = (
        "import sys, runner.command.report; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_colours_can_be_seen_on_white_and_on_black():
    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in COLOURS:
        assert (
            1.05 / (light(colour) + 0.05) >= 3
            and (light(colour) + 0.05) / (light("#1c2026") + 0.05) >= 3
        ), colour


@pytest.mark.slow
def test_the_verb_lists_reports_and_refuses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def line(*words: str):
        return SimpleNamespace(
            verb="report",
            runs=[w for w in words if "=" not in w],
            overrides=[w for w in words if "=" in w],
        )

    assert main(line()) == 0
    assert "no runs under outputs/ yet" in capsys.readouterr().out
    lay_sweep(tmp_path / "outputs" / "kl", SEEDS)
    set_status(
        lay_run(tmp_path / "outputs" / "foreign" / "run", state="failed"), cause="\x1b[2Jgone"
    )
    assert main(line("foreign")) == 0
    assert "␛[2Jgone" in (told := capsys.readouterr().out)
    assert "\x1b" not in told
    shutil.rmtree(tmp_path / "outputs" / "foreign")
    (tmp_path / "outputs" / "empty").mkdir()
    assert listing(Path("outputs")).splitlines()[1].split() == ["outputs/kl", "4", "4", "finished"]
    assert main(line("kl", "objective=eval_loss")) == 0
    assert "page      outputs/kl/report.html" in capsys.readouterr().out
    with pytest.raises(FolderError, match="it contains no run"):
        main(line("outputs/empty"))
    with pytest.raises(FolderError, match="report outputs/kl"):
        main(line("outputs/kll"))
    with pytest.raises(ConfigError, match="objective=loss"):
        main(line("kl", "objectiv=loss"))


@pytest.mark.slow
@pytest.mark.skipif(browser.CHROMIUM is None, reason="needs Chromium")
def test_the_page_fits_a_phone_with_and_without_its_script(partial, tmp_path):
    group = tmp_path / "wide"
    shutil.copytree(partial, group)
    folder = lay_run(group / ("long-" * 30), state="failed", kl_coef=5.0, learning_rate="w" * 90)
    set_status(folder, cause="c" * 300)
    summary = summarise(group)
    page = write_report(summary)
    drawn = len(list(sweep_pictures(summary)))
    with browser.browser() as window:
        for disabled, pictures in ((True, "figure svg"), (False, "figure svg, figure canvas")):
            window.call("Emulation.setScriptExecutionDisabled", value=disabled)
            window.open(page.as_uri(), 390)
            size = window.call("Page.getLayoutMetrics")["cssContentSize"]
            assert size["width"] <= 390, "the page scrolls sideways"
            node = window.call("DOM.getDocument", depth=0)["root"]["nodeId"]
            assert (
                len(window.call("DOM.querySelectorAll", nodeId=node, selector=pictures)["nodeIds"])
                == drawn
            )


def describe(before, after, rows=200, **cfg):
    data = {"data": {"eval": {"rows": rows}}}
    return describe_decline(RunRecord(Path("a/b"), cfg, {}, data, before, after))


def test_a_model_that_ends_significantly_worse_is_reported():
    line = describe(
        {"eval_loss": 0.693, "eval_rewards/accuracies": 0.0},
        {"eval_loss": 19.0, "eval_rewards/accuracies": 1.0},
    )
    assert line == (
        "the model ended worse than it began: "
        "eval_loss 0.693 -> 19 on 200 held-out rows, lower is better"
    )
    assert describe({"eval_loss": 2.0}, {"eval_loss": 2.1}) is None
    assert describe({"eval_loss": 2.0}, {"eval_loss": 1.0}) is None
    assert describe({"eval_loss": 2.0}, {"eval_loss": 9.0}, rows=None) is None
    assert describe({}, {"eval_loss": 9.0}) is None


@pytest.mark.parametrize(
    ("rewards", "deviation", "line"),
    [
        (
            (0.0, 0.0),
            0.0,
            "every completion earned 0, so there was nothing to prefer: look at the reward",
        ),
        ((0.5, 0.5), 0.1, None),
        ((0.0, 0.5), 0.0, None),
        ((), 0.0, None),
    ],
)
def test_constant_rewards_are_reported_at_the_end(tmp_path, rewards, deviation, line):
    lines = [
        json.dumps({"step": 1 + step, "reward": step_rewards, "reward_std": deviation})
        for step, step_rewards in enumerate(rewards)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert describe_decline(RunRecord(tmp_path, {}, {}, {})) == line


def test_without_a_logged_spread_rewards_are_not_called_constant(
    tmp_path,
):
    lines = [json.dumps({"step": step, "objective/scores": 0.5}) for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert describe_decline(RunRecord(tmp_path, {}, {}, {})) is None


def test_the_figures_that_may_show_a_spoilt_model():
    names = (
        "eval_loss",
        "eval_two_loss",
        "eval_mean_token_accuracy",
        "eval_reward",
        "eval_mean_reward",
        "eval_exact",
    )
    scores = dict.fromkeys(names, 0.5)
    metric = {"metric": {"exact": {"_target_": "runner.metric.exact", "better": "higher"}}}
    changes = list_changes(RunRecord(Path("a/b"), metric, {}, {}, scores, scores))
    assert {change.name: change.kind for change in changes} == {
        "eval_loss": "loss",
        "eval_two_loss": "loss",
        "eval_mean_token_accuracy": "share",
        "eval_reward": "reward",
        "eval_exact": "share",
    }


def test_a_metric_of_the_configuration_is_named_whatever_it_is_called(tmp_path):
    metric = {"accuracy": {"_target_": "runner.metric.binary.accuracy", "better": "higher"}}
    group = lay_run(tmp_path / "g" / "a", after={"eval_accuracy": 0.8}, metric=metric).parent
    assert summarise(group).objective.why == "metric.accuracy of the configuration"


def test_reward_models_are_ranked_by_the_pairs_that_they_get_right(tmp_path):
    scores = {
        "eval_loss": 0.6,
        "eval_min_reward": -9.0,
        "eval_mean_reward": 1.0,
        "eval_max_reward": 2.0,
    }
    group = lay_run(tmp_path / "g" / "a", after=scores | {"eval_accuracy": 0.8}).parent
    assert summarise(group).objective.name == "eval_accuracy"
    assert is_more_better([], "eval_mean_reward") is None
    assert is_more_better([], "eval_reward") is True


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        (
            {"a": {"eval_exact": 0.5, "eval_accuracy": 0.6}, "b": {"eval_accuracy": 0.7}},
            "eval_accuracy 0.7",
        ),
        ({"a": {"eval_exact": 0.5}, "b": {"eval_accuracy": 0.7}}, "only run=a has eval_exact"),
        (
            {"a": {"eval_exact": 0.5}, "b": {"eval_exact": 0.7}, "c": {"eval_loss": 1.0}},
            "eval_exact 0.7",
        ),
        ({"a": {"eval_exact": 0.5}, "b": {}}, "only run=a has eval_exact"),
    ],
)
def test_the_best_run_is_one_of_those_that_a_score_compares(tmp_path, scores, best):
    for name, after in scores.items():
        lay_run(tmp_path / "g" / name, after=after, metric={"exact": {"_target_": "x"}}, run=name)
    summary = summarise(tmp_path / "g")
    text = " ".join(sweep_table(summary).split())
    assert best in text and ("only" in best) is (summary.best is None), text
    if "c" in scores:
        assert "not compared with 1 other without eval_exact" in text
    if summary.best is None:
        assert "No score compares all of them: only run=a" in html.unescape(
            write_report(summary).read_text()
        )
        assert summarise(tmp_path / "g", "eval_exact").best is not None, (
            "who asks for a score is given it"
        )


def test_the_decline_is_that_of_the_objective_or_of_the_reward_of_a_trainer_that_samples():
    exact = {"_target_": "runner.metric.exact", "better": "higher"}
    metric = {"metric": {"exact": exact}}
    fallen = {"eval_loss": 0.7, "eval_exact": 0.5}, {"eval_loss": 0.1, "eval_exact": 0.2}
    assert "eval_exact 0.5 -> 0.2" in describe(*fallen, **metric)
    assert describe(*fallen, rows=16, **metric) is None
    assert describe(*fallen, metric={"exact": exact | {"limit": 16}}) is None
    assert describe(*fallen, objective="eval_loss") is None
    sampled = [
        {"eval_reward": mean, "eval_reward_std": 0.3, "eval_loss": loss}
        for mean, loss in ((0.7, 0), (0.5, 5))
    ]
    assert "eval_reward 0.7 -> 0.5" in describe(*sampled)
    assert describe(*sampled, rows=16) is None
    assert describe(*sampled[::-1]) is None


def test_a_loss_that_rises_as_a_model_learns_gives_no_verdict():
    args = {"_target_": "trl.SFTConfig", "loss_type": "dft"}
    trainer = {"trainer": {"_target_": "trl.SFTTrainer", "args": args}}
    ends = [{"eval_loss": 0.0111, "eval_mean_token_accuracy": 0.043}]
    ends += [{"eval_loss": 0.0426, "eval_mean_token_accuracy": 0.181}]
    assert "eval_loss" in describe(*ends)
    assert describe(*ends, **trainer) is None
    verdicts = [
        end | {"eval_cross_entropy": value} for end, value in zip(ends, (2.0, 9.0), strict=True)
    ]
    assert "worse than it began: eval_cross_entropy 2 -> 9" in describe(*verdicts, **trainer)
    assert describe(*verdicts[::-1], **trainer) is None
    run = RunRecord(Path("a/b"), trainer, {}, {}, *ends)
    assert {row.name: row.change.text for row in score_rows(run)}["eval_loss"] == "+0.0315"


@pytest.mark.slow
def test_a_sweep_names_those_that_ended_worse(tmp_path, capsys):
    group = lay_sweep(tmp_path / "pair", {(0.1, 1e-4, 0): 0.5, (0.2, 1e-4, 0): 0.1})
    worse = group / "kl-0.2+lr-0.0001+seed-0"
    set_status(worse, cause="the model ended worse than it began: eval_exact 0.4 -> 0.1")
    for folder in (worse, group):
        assert main(SimpleNamespace(verb="report", runs=[str(folder)], overrides=[])) == 0
    assert (
        "finished    kl-0.2+lr-0.0001+seed-0 4/8\n            the model ended worse"
        in capsys.readouterr().out
    )
    for page in (group, worse):
        assert "the model ended worse than it began" in (page / "report.html").read_text()
