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


@pytest.mark.dear("two trainings, each in a process of its own, as the script is for")
@pytest.mark.slow
def test_a_part_that_is_done_is_not_measured_again(tmp_path):
    results = tmp_path / "results.json"
    words = ["--tiny", "--steps", "4", "--results", str(results)]
    first = rows_of(run("card.py", *words, "--part", "dpo"))
    assert [row[:2] for row in first] == [["dpo", "ours"], ["dpo", "TRL"]]
    assert all(float(row[2].replace(",", "")) > 0 for row in first)
    kept = json.loads(results.read_text())
    kept["parts"]["dpo"]["rows"][0]["note"] = "of the first call"
    results.write_text(json.dumps(kept))
    # The next part has no time left.
    second = rows_of(run("card.py", *words, "--seconds", "1", "--part", "dpo", "sft"))
    assert [row[-1] for row in second] == [
        "of the first call",
        "the same arguments",
        "left for the next call",
    ]


@pytest.mark.dear("two trainings, each in a process of its own, as the script is for")
@pytest.mark.slow
def test_a_step_does_what_the_step_of_a_plain_script_does():
    ours, plain = rows_of(run("step_counts.py", "--layers", "2", "--experiment", "dpo"))
    figures = [[float(cell.replace(",", "")) for cell in row[1:5]] for row in (ours, plain)]
    operators = [row[0] for row in figures]
    assert 0 <= operators[0] - operators[1] <= MOST_FURTHER_OPERATORS
    assert figures[0][1:3] == figures[1][1:3], "products and passes through the model"
    assert figures[0][3] <= figures[1][3], "reads by the host, each of which waits for a card"
