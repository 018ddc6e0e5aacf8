"""The origin of a value: file and line, typed word, the runner, or the installed source.

And what it overrode.
"""

import re
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.command._words import read_command_line
from runner.config.provenance import read_settings
from runner.io.files import MENU, write_json
from runner.launch.compose.stages import compose_runs
from runner.run import Run, open_run


def why(capsys, *words, code=0):
    assert main(["why", *words]) == code
    out = capsys.readouterr()
    return out.err if code else out.out


def line_of(place):
    """The text at ``conf/file.yaml:7``, or of a line in the installed source."""
    file, _, number = place.partition(":")
    root = (
        MENU.parent
        if file.startswith("conf/")
        else Path(__import__("importlib").util.find_spec("trl").origin).parents[1]
    )
    return (root / file).read_text().splitlines()[int(number) - 1]


@pytest.mark.slow
def test_a_value_is_followed_to_the_file_that_counts_and_past_all_that_it_overrode(capsys):
    text = why(capsys, "trainer.args.learning_rate", "trainer=dpo", "experiment=toy_dpo")
    first, second = re.split(r"^(?=learning_rate)", text, flags=re.MULTILINE)
    assert first.splitlines()[0] == "trainer.args.learning_rate = 0.0001"
    assert "is    ${learning_rate}  conf/trainer/dpo.yaml:" in first
    assert "(default of DPOConfig)" in first
    places = [line.split()[2] for line in second.splitlines()[1:]]
    assert [place.split(":")[0] for place in places] == [
        "conf/experiment/toy_dpo.yaml",
        "conf/model/tiny.yaml",
        "conf/trainer/dpo.yaml",
        "conf/config.yaml",
    ]
    for place in places:
        assert line_of(place).lstrip().startswith("learning_rate:")
    default = re.search(r"trl/\S+:\d+", first)[0]
    assert "learning_rate: float" in line_of(default)


@pytest.mark.slow
def test_a_dropped_default_of_another_model_is_no_origin(capsys):
    text = why(capsys, "learning_rate", "model.path=org/name")
    assert text.startswith("learning_rate = 2e-5\n  is    2e-5  conf/trainer/sft.yaml:")
    assert "tiny.yaml" not in text
    assert "conf/model/tiny.yaml" in why(capsys, "model.path", "model.path=org/name")
    assert main(["--cfg", "job", "model.path=org/name", "model=tiny"]) == 0
    assert "\nlearning_rate: 2.0e-05\n" in capsys.readouterr().out


def test_a_typed_word_counts_most(capsys):
    lines = why(capsys, "max_steps", "trainer.args.max_steps=7").splitlines()
    assert lines[0] == "trainer.args.max_steps = 7"
    assert lines[1].split() == [
        "is",
        "7",
        "command",
        "line",
    ]
    assert lines[2].split()[:2] == ["over", "80"]
    assert lines[3].split()[:2] == ["over", "-1"]


def test_a_typed_mapping_gives_each_of_its_keys(capsys):
    assert "is    5     command line" in why(
        capsys, "dataset.limit.train", "dataset.limit={train: 5}"
    )


@pytest.mark.slow
def test_a_typed_part_that_is_alone_in_its_group_has_an_origin(capsys):
    target = "runner.reward.rule.length"
    text = why(capsys, "reward._target_", "trainer=grpo", f"reward._target_={target}")
    assert f"is    {target}  command line" in text


@pytest.mark.slow
def test_unset_values_come_from_the_installed_source(capsys):
    text = why(capsys, "trainer.args.warmup_steps")
    assert text.splitlines()[0] == "trainer.args.warmup_steps = 0"
    assert "warmup_steps: " in line_of(re.search(r"transformers/\S+:\d+", text)[0])


@pytest.mark.slow
def test_values_decided_by_the_runner_are_read_from_its_source(capsys):
    text = why(capsys, "trainer.args.seed", "seed=3")
    assert "${seed}  runner/training/components/args.py:" in text
    assert "seed = 3\n  is    3  command line" in text
    assert "on a machine without a GPU" in why(capsys, "trainer.args.bf16")
    assert text.count("over") == 2  # 42 of transformers, 0 of conf/config.yaml


@pytest.mark.slow
def test_a_node_lists_its_keys(capsys):
    text = why(capsys, "peft", "peft=lora", "peft.r=4")
    assert re.search(r"peft\.r +4 +command line", text)
    assert re.search(r"peft\.lora_alpha +32 +conf/peft/lora.yaml:\d", text)


@pytest.mark.slow
def test_the_words_of_a_stage_have_the_lines_of_its_experiment(capsys):
    text = why(capsys, "learning_rate", "experiment=toy_rlhf", "ppo.learning_rate=2e-4")
    stages = re.split(r"^stage (\w+)\n", text, flags=re.MULTILINE)[1:]
    lines = dict(zip(stages[::2], stages[1::2], strict=True))
    assert list(lines) == ["sft", "reward_model", "ppo"]
    places = [
        re.search(r"conf/experiment/toy_rlhf.yaml:\d+", lines[stage])[0]
        for stage in ("sft", "reward_model")
    ]
    assert len(set(places)) == 2
    for place in places:
        assert "learning_rate=3e-4" in line_of(place)
    assert "is    2e-4  command line" in lines["ppo"]
    only = why(capsys, "ppo.kl_coef", "experiment=toy_rlhf")
    assert "stage ppo" in only
    assert "stage sft" not in only
    assert "kl_coef = 0.1" in only


@pytest.mark.slow
def test_a_folder_of_the_users_own_is_shown_as_one_types_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "peft").mkdir(parents=True)
    (tmp_path / "mine" / "peft" / "lora.yaml").write_text(
        "# My own.\n_target_: peft.LoraConfig\nr: 5\n"
    )
    assert "is    5  mine/peft/lora.yaml:3" in why(
        capsys, "peft.r", "peft=lora", "--config-dir", "mine"
    )


@pytest.mark.slow
def test_a_wrong_configuration_can_be_asked_about(capsys):
    text = why(capsys, "trainer.args.lerning_rate", "trainer.args.lerning_rate=1")
    assert "is  1  command line" in text


# --- Of a run -------------------------------------------------------------------------------------


def opened(*words):
    """The folders of the runs that the command of these words would train."""
    line = read_command_line(words)
    folders = []
    for composed in compose_runs(line.overrides, line.folders):
        run = open_run(composed.cfg, composed.overrides, composed.command, composed.choices)
        folders.append(run.folder)
    return folders


@pytest.mark.slow
def test_a_value_of_a_run_comes_from_its_command_and_from_its_file_once_that_has_changed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("trainer: dpo\ntrainer.args.max_steps: 7\nname: mine\n")
    (folder,) = opened("own.yaml", "seed=3")
    shown = folder.relative_to(tmp_path)
    assert "is    3  command line\n" in why(capsys, "seed", "mine")
    text = why(capsys, "max_steps", "mine")
    assert text.startswith("trainer.args.max_steps = 7\n  is    7   own.yaml:2\n")
    Path("own.yaml").write_text("trainer: dpo\ntrainer.args.max_steps: 9\nname: mine\n")
    text = why(capsys, "max_steps", "mine")
    line = (folder / "config.yaml").read_text().splitlines().index("    max_steps: 7") + 1
    assert f"= 7\n  is    7   {shown}/config.yaml:{line}  (what gave it has changed" in text
    assert "  over  9   own.yaml:2\n" in text
    adjustment = {"kind": "halving", "step": 4, "cause": "no memory", "from_step": 2}
    write_json(folder / "adjustments.json", {"adjustments": [{**adjustment, "args": {"x": 1}}]})
    assert "adjusted  step 4: no memory; again from step 2 with x=1" in why(capsys, "seed", "mine")
    Path("own.yaml").unlink()
    text = why(capsys, "max_steps", "mine")
    assert f"is    7   {shown}/config.yaml:{line}\n" in text
    assert "note      its command can no longer be composed: " in text
    (folder / "manifest.json").unlink()
    assert "note      no command is recorded in its manifest.json" in why(capsys, "seed", "mine")
    assert f"why seed {shown}\n" in why(capsys, "sed", "mine", code=2)


@pytest.mark.slow
def test_a_value_of_a_stage_and_one_of_a_repetition_have_the_places_of_the_first_command(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    *_, ppo = opened("experiment=toy_rlhf", "ppo.learning_rate=2e-4")
    text = why(capsys, "kl_coef", str(ppo.relative_to(tmp_path)))
    assert "kl_coef = 0.1\n  is    0.1   conf/experiment/toy_rlhf.yaml:" in text
    assert "is    2e-4  command line" in why(capsys, "learning_rate", "toy-rlhf-ppo")
    again = open_run(Run(ppo).cfg | {"name": "again"}, [], ["reproduce", f"{Run(ppo)}"])
    text = why(capsys, "learning_rate", str(again))
    assert "is    2e-4  command line" in text
    assert "name = again\n  is    again " in why(capsys, "name", str(again))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trainer.args.lerning_rate"], "python -m runner why trainer.args.learning_rate"),
        (["path"], "dataset.path, model.path, model.tokenizer.path"),
        (["zzz"], "no such key"),
        ([], "no key"),
        (["seed", "outputs/name/run", "seed=1"], "python -m runner why seed outputs/name/run\n"),
        (["seed", "trainer=dop"], "trainer=dpo"),
        (["seed", "-m", "seed=1,2"], "one configuration"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(words, message, capsys):
    assert message in why(capsys, *words, code=2)


def test_the_lines_of_a_file(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(
        "defaults: [a]\na:\n  b: 1e-4  # rate\n  c: [1,\n"
        "    2]\nd: {e: 'x', f: '${a.b}'}\ng:\nh: {}\n"
    )
    lines = [
        (entry.key, entry.text, entry.place.rpartition(":")[2])
        for entry in read_settings(file, "top")
    ]
    assert lines == [
        ("top.a.b", "1e-4", "3"),
        ("top.a.c", "[1,2]", "4"),
        ("top.d.e", "'x'", "6"),
        ("top.d.f", "'${a.b}'", "6"),
        ("top.g", "null", "7"),
        ("top.h", "{}", "8"),
    ]


@pytest.mark.slow
def test_the_shared_batch_is_named_as_the_origin_of_each_processes_batch(capsys):
    words = ("batch=64", "trainer.args.per_device_train_batch_size=8", "launcher.num_processes=2")
    for name, value in (("gradient_accumulation_steps", 4), ("per_device_train_batch_size", 8)):
        text = why(capsys, f"trainer.args.{name}", *words)
        assert text.startswith(
            f"trainer.args.{name} = {value}\n"
            f"  is    ${{batch}}, shared by the processes  runner/config"
        )
        assert "batch = 64\n  is  64  command line" in text
        assert main(["--cfg", "job", *words]) == 0
        assert f"\n    {name}: {value}\n" in capsys.readouterr().out
    assert "batch" not in why(capsys, "gradient_accumulation_steps")
