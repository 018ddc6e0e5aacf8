"""The scripts that compare a training with TRL's: counts of a step, and ``card.py`` without a card.

All of its parts on the CPU: python tests/benchmark/card.py --tiny
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent / "benchmark"
MOST_FURTHER_OPERATORS = 40  # of a step of ours, beside those of TRL's
SECONDS_ON_A_CARD = 480  # that the script's head promises


def run(script, *words):
    """What a script prints, on a machine without a card."""
    done = subprocess.run(
        [sys.executable, BENCHMARK / script, *words],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(text):
    """The cells of a markdown table, without those of its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.slow
def test_the_script_of_a_card_says_if_there_is_none():
    assert run("card.py").startswith("no CUDA card: nothing to measure")


@pytest.mark.slow
def test_all_parts_together_keep_to_the_time_that_is_promised(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARK)
    from card_parts import PARTS

    limits = [part.seconds for part in PARTS.values() if part.by_default]
    assert sum(limits) == SECONDS_ON_A_CARD


@pytest.mark.slow
def test_a_part_that_is_done_is_not_measured_again(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARK)
    import card

    measured = []

    def measure(part, scratch, options, limit):
        measured.append(part)
        rows = [card.Row("ours", tokens_per_second=1000.0, note=f"call {len(measured)}")]
        return card.PartResult(part != "sft", 2.0, rows)

    monkeypatch.setattr(card, "run_apart", measure)
    monkeypatch.setattr(card, "describe_machine", lambda tiny, python: "this machine")
    results = tmp_path / "results.json"
    words = ["card.py", "--tiny", "--results", str(results), "--part", "dpo", "sft"]
    monkeypatch.setattr(sys, "argv", words)
    card.main()
    card.main()  # the second has failed, and is measured again
    assert measured == ["dpo", "sft", "sft"]
    rows = rows_of(capsys.readouterr().out)
    assert [(row[0], row[-1]) for row in rows[-2:]] == [("dpo", "call 1"), ("sft", "call 3")]
    # The next part has no time left.
    monkeypatch.setattr(sys, "argv", [*words, "grpo", "--seconds", "1"])
    card.main()
    rows = rows_of(capsys.readouterr().out)
    assert rows[-1][0] == "grpo"
    assert rows[-1][-1] == "left for the next call"
    assert json.loads(results.read_text())["machine"] == "this machine"


@pytest.mark.slow
def test_a_step_does_what_the_step_of_a_plain_script_does(runner):
    words = ("--layers", "2", "--experiment", "dpo")
    path = f"{BENCHMARK.parent.parent}{os.pathsep}{BENCHMARK}"
    done = runner(*words, door="step_counts:main", PYTHONPATH=path)
    ours, plain = rows_of(done.stdout)
    figures = [[float(cell.replace(",", "")) for cell in row[1:5]] for row in (ours, plain)]
    operators = [row[0] for row in figures]
    assert 0 <= operators[0] - operators[1] <= MOST_FURTHER_OPERATORS
    assert figures[0][1:3] == figures[1][1:3], "products and passes through the model"
    assert figures[0][3] <= figures[1][3], "reads by the host, each of which waits for a card"
