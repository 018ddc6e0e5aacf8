"""Two runs side by side: what they share in one line, then the differences, shortest first."""

import json

import pytest
from laid import lay_run, write

from runner.__main__ import main
from runner.report.compare import SectionRow, deviations, sections_of
from runner.report.facts import changed_files
from runner.run.record import read_run

PATCH = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+{}\n"


def lay_pair(tmp_path, **changes):
    """Two finished runs that differ in kl_coef and its beta, in a version, in their rows and in
    their results.
    """
    for name, kl, score in (("a", 0.1, 0.5), ("b", 0.3, 0.75)):
        run = lay_run(
            tmp_path / "outputs" / name / f"kl-{kl}-0123456789",
            after={"eval_exact": score, "eval_runtime": score},
            lines=[{"step": n, "loss": score / n, "elapsed_seconds": score} for n in (1, 2)],
            words=["trainer=dpo", f"kl_coef={kl}", f"name={name}"],
            kl_coef=kl,
            trainer={"_target_": "trl.DPOTrainer", "args": {"beta": kl, "max_steps": 2}},
        )
        manifest = json.loads((run / "manifest.json").read_text())
        facts = {
            "data": {
                "train": {"rows": 9, "fingerprint": f"{name}" * 64},
                "eval": {"rows": 3, "fingerprint": "e" * 64},
            },
            "versions": {"trl": "1.16.0", "torch": f"2.1{name}"},
            "hardware": {"processors": 2},
            "git": {"commit": "c" * 40, "diff": PATCH.format(name)},
        }
        write(run / "manifest.json", manifest | facts | changes)


@pytest.fixture
def pair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lay_pair(tmp_path)


def test_differences_come_by_section_the_shortest_first(pair, capsys):
    assert main(["diff", "a", "b"]) == 0
    text = capsys.readouterr().out
    assert "same      hardware, state" in text
    assert "not said  model" in text
    assert "torch     2.1a  2.1b" in text
    assert "trl" not in text.split("versions")[1].split("\n\n")[0]
    assert "train.fingerprint  aaaaaaaaaaaa  bbbbbbbbbbbb" in text
    assert "train.rows" not in text
    assert "kl_coef (also beta)  0.1  0.3" in text
    assert "changed x.py  +1 -1" in text
    assert "commit" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    (line,) = [line for line in text.splitlines() if "eval_exact" in line]
    assert line.split()[-3:] == ["0.5", "0.75", "+0.25"]
    assert "runtime" not in text
    lengths = [len(part.splitlines()) for part in text.split("\n\n")[1:]]
    assert len(lengths) == 7
    assert lengths == sorted(lengths)


def test_a_run_is_like_itself(pair, capsys):
    assert main(["diff", "a", "outputs/a/kl-0.1-0123456789"]) == 0
    assert capsys.readouterr().out.count("\n") == 4


def test_runs_are_found_by_folder_name_and_key(pair, capsys):
    lay_run_again = ("outputs/b", "b/kl-0.3-0123456789", "kl-0.3-0123456789")
    for word in lay_run_again[:2]:
        assert main(["diff", "a", word]) == 0
    assert "outputs/b/kl-0.3" in capsys.readouterr().out
    assert main(["diff", "a", "0123456789"]) == 4
    assert "2 runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["a"], 2, "2 runs"),
        (["a", "bb"], 4, "python -m runner diff a outputs/b/kl-0.3-0123456789"),
        (["a", "b", "output_rot=x"], 2, "type      output_root=x"),
        (["a", "b", "output_root=elsewhere"], 4, "python -m runner report"),
    ],
)
def test_a_missing_run_is_reported_with_the_nearest(pair, words, code, message, capsys):
    assert main(["diff", *words]) == code
    assert message in capsys.readouterr().err


def test_runs_in_any_state_are_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lay_run(tmp_path / "outputs" / "a" / "x", state="interrupted")
    torn = lay_run(tmp_path / "outputs" / "b" / "x")
    for name in ("config.yaml", "manifest.json", "metrics.jsonl"):
        (torn / name).write_bytes(b"\xff[1, {")
    assert main(["diff", "a", "b"]) == 0
    assert "interrupted  finished" in capsys.readouterr().out


def test_a_node_that_only_one_has_is_one_row(tmp_path):
    peft = {"_target_": "peft.LoraConfig", "r": 16}
    runs = [
        read_run(lay_run(tmp_path / "n" / str(place), peft=node))
        for place, node in enumerate((None, peft))
    ]
    (config,) = [section for section in sections_of(*runs) if section.title == "config"]
    assert config.rows == [SectionRow("peft", "—", "LoraConfig(r=16)")]


def test_changed_lines_of_a_patch_are_counted_file_by_file():
    two = PATCH.format("b") + PATCH.format("b").replace("x.py", "y.py") + "+c\n"
    assert [(file.name, file.added, file.removed) for file in changed_files(two)] == [
        ("x.py", 1, 1),
        ("y.py", 2, 1),
    ]


def test_an_empty_line_of_a_diff_is_no_change():
    """Such as git writes for an unchanged one if configured so, or as the form feed that ends a
    line.
    """
    diff = "diff --git a/x.py b/x.py\n@@ -1 +1 @@\n\n-a\n+b\x0c\n"
    assert [(file.added, file.removed) for file in changed_files(diff)] == [(1, 1)]


def test_the_first_step_that_differs_comes_first_and_times_do_not_count(pair, tmp_path):
    runs = [read_run(next((tmp_path / "outputs" / name).iterdir())) for name in "ab"]
    first, *later = deviations(*runs)
    assert (first.step, first.name, first.ours, first.theirs) == (1, "loss", 0.5, 0.75)
    assert first.size == pytest.approx(1 / 3)
    assert "step 1: loss 0.5 -> 0.75, 33 % apart" in str(first)
    assert {entry.name for entry in later} == {"loss", "eval_exact"}
    assert deviations(runs[0], runs[0]) == []
