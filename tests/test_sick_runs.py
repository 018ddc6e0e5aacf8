"""Sick runs stop within five steps and keep their last good checkpoint: part of ``fault/sick``."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from sick import HEALTHY, SICK, perform

from runner.run.history import read_metrics
from runner.run.seal import sealed_checkpoints

pytestmark = pytest.mark.slow
# Sicknesses of a policy, of weights, of a judge and of samples.
CHOSEN_SICK = {"far worse sft", "frozen adapter", "nan weight at a save", "greedy grpo"}
CHOSEN_HEALTHY = {"sft memorised"}


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    "case", [case for case in SICK if case.name in CHOSEN_SICK], ids=lambda case: case.name
)
def test_a_sick_run_stops(case, tmp_path):
    outcome = perform(case, tmp_path)
    assert not outcome.faults(case), outcome.text


@pytest.mark.parametrize(
    "case", [case for case in HEALTHY if case.name in CHOSEN_HEALTHY], ids=lambda case: case.name
)
def test_a_healthy_run_ends(case, tmp_path):
    outcome = perform(case, tmp_path)
    assert not outcome.faults(case), outcome.text


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", ["sign of dpo", "zero gradient sft"])
def test_the_fix_of_a_sick_run_resumes_from_its_last_good_checkpoint(name, tmp_path):
    case = next(
        replace(case, words=(*case.words, "trainer.args.save_total_limit=9"))
        for case in SICK
        if case.name == name
    )
    sick = perform(case, tmp_path)
    good = sealed_checkpoints(sick.run.checkpoints)[-1]
    again = perform(case, tmp_path)
    assert (again.code, again.text) == (sick.code, sick.text), "the same command alone is as sick"
    typed = re.search(r"tolerate\.\w+=true", sick.text)[0]
    seal = (good / "seal.json").stat()
    finished = perform(replace(case, words=(*case.words, typed)), tmp_path)
    assert (finished.code, finished.run.folder, finished.run.status()["state"]) == (
        0,
        sick.run.folder,
        "finished",
    )
    assert (good / "seal.json").stat() == seal
    assert typed in finished.run.manifest()["command"]
    lines = [line["step"] for line in read_metrics(finished.run.metrics)]
    assert lines == sorted(set(lines))
    assert perform(case, tmp_path).code == 0, "a finished run is finished, whatever is tolerated"
