"""The door: what a user types, what comes back, and that nothing half-made is left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.command import VERBS
from runner.command._help import help_text
from runner.command._option import options_of
from runner.command._words import read_command_line
from runner.errors import ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """In this checkout, earlier runs would be found finished."""
    monkeypatch.chdir(tmp_path)


def faults(capsys, *words):
    assert main([*words]) == 2
    return capsys.readouterr().err


def test_all_faults_are_reported_at_once_and_no_folder_is_made(tmp_path, capsys):
    text = faults(
        capsys,
        "trainer=dpo",
        "trainer.args.lerning_rate=1e-6",
        "trainer.args.max_steps=many",
        "trainer.args.beta=-1",
        "modle.path=x",
        "model.rev=main",
    )
    for phrase in (
        "trainer.args.lerning_rate",
        "learning_rate",
        "trainer.args.max_steps",
        "trainer.args.beta",
        "modle",
        "model.rev",
        "model.revision",
    ):
        assert phrase in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dataset_that_does_not_fit_names_those_that_do(capsys):
    text = faults(capsys, "trainer=dpo", "dataset=tldr")
    assert "prompt_completion rows" in text
    assert "ultrafeedback" in text
    assert "descriptiveness" in text


@pytest.mark.slow
def test_a_trainer_that_needs_a_reward_names_the_menu(capsys):
    assert "reward=" in faults(capsys, "trainer=grpo", "dataset=hub", "dataset.path=org/name")


@pytest.mark.slow
def test_a_part_that_the_trainer_does_not_take_is_refused(capsys):
    assert "reward" in faults(capsys, "trainer=sft", "reward=distinct_characters")


def test_several_values_without_m_ask_for_it(capsys):
    assert "python -m runner -m" in faults(capsys, "learning_rate=1e-6,2e-6")


@pytest.mark.slow
def test_a_fault_in_any_job_of_a_sweep_starts_none(tmp_path, capsys):
    assert "kl_coef" in faults(capsys, "-m", "trainer=dpo,sft", "kl_coef=0.1,0.2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path, capsys):
    assert (
        main(["-m", "--dry-run", "trainer=dpo", "kl_coef=0.05,0.1", "learning_rate=1e-6,3e-6"]) == 0
    )
    head, counts, bound, *lines = capsys.readouterr().out.splitlines()
    assert bound.startswith("evaluates at most 200 held-out prompts")
    assert head.endswith("4 runs in outputs/dpo-tiny-toy: kl_coef 2 x learning_rate 2")
    assert counts.strip() == "4 new"
    assert len(lines) == 4
    for line in lines:
        assert line.startswith("new ")
    assert len(set(lines)) == 4
    assert list(tmp_path.iterdir()) == []


MINE = ("trainer=grpo", "reward=none", "reward.x._target_=my_reward.short", "allow=[my_reward]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tracker=wandb", "trainer.args.use_liger_kernel=true"], "pip install liger-kernel"),
        (["-m", "seed=0,1", "tracker=wandb"], "pip install 'wandb>=0.19'"),
        (
            ["experiment=toy_rlhf", "ppo.quant=4bit", "ppo.peft=lora"],
            "pip install 'bitsandbytes>=0.50'",
        ),
        (["trainer.args.fp16=true"], "trainer.args.fp16=false"),
        (["output_root=my_part.py"], "my_part.py is a file"),
        (
            ["launcher.jobs=1", "launcher.num_processes=2", "launcher.devices=[0]"],
            "launcher.num_processes=1",
        ),
        (MINE, "my_part.py:2 imports absent_library"),
        (["-m", *MINE, "seed=0,1"], "mend my_part.py:2"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("runner.validate.libraries.find_spec", lambda name: None)
    monkeypatch.setattr("runner.validate.machine.has_devices", lambda: False)
    Path("my_reward.py").write_text(
        "from my_part import half\ndef short(completions, **kwargs): return [half(1)]\n"
    )
    Path("my_part.py").write_text(
        "import os.path\nimport absent_library\nif not half: import other\n"
    )
    codes = []
    told = []
    for flags in ([], ["--dry-run"]):
        codes.append(main([*words, *flags]))
        told.append(capsys.readouterr().err)
    assert codes == [2 if "launcher.jobs=1" in words else 5] * 2
    assert told[0] == told[1]
    assert message in told[0]
    assert "other" not in told[0]
    assert not Path("outputs").exists()


@pytest.mark.parametrize("words", [["trian"], ["--verbos"], ["train", "typo"], ["resume", ""]])
def test_unknown_words_are_refused(words):
    with pytest.raises(ConfigError):
        read_command_line(words)


@pytest.mark.slow
def test_commands_of_tests_are_forked_from_one_that_has_imported(warm, request, monkeypatch):
    # in this process, between the start of another process and a command
    monkeypatch.setenv("SET_BY_A_TRAINING", "1")
    runner = request.getfixturevalue("runner")
    before = warm.count
    runner("--help")
    assert warm.count == before + 1
    assert not runner._is_plain(runner.environment | {"HF_HUB_OFFLINE": "0"})


def light(*words, code="sys.exit(main())"):
    """Exit code and text of the command in a fresh process that may not import torch."""
    blocked = "sys.modules |= dict.fromkeys(['torch', 'transformers', 'datasets'])"
    code = f"import sys; {blocked}; from runner.__main__ import main; {code}"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=dict(os.environ)
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.grid(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "phrase"),
    [
        (["trainer=dpo", "trainer.args.lerning_rate=1"], 2, "learning_rate"),
        (["--help"], 0, "a checked-in experiment"),
        (["trainer=dpo", "--cfg", "job"], 0, "name: dpo-tiny-toy"),
        (["trainer=dpo", "--dry-run"], 0, "outputs/dpo-tiny-toy/default-"),
        (["preview", "dataset.split.train=train[:0]"], 2, "no row: "),
        (
            ["rehearse", "peft=lora", "peft.target_modules=up"],
            2,
            "up is not the whole name of any layer",
        ),
    ],
)
def test_looking_and_checking_need_no_torch(words, code, phrase):
    got, text = light(*words)
    assert (got, phrase in text) == (code, True), text


@pytest.mark.slow
def test_every_verb_explains_itself_and_refuses_what_is_wrong_without_torch():
    codes = (
        "[(main([verb, '--help']), main([verb, 'trainer=nope', "
        "'lerning_rate=1'])) for verb in sys.argv[1:]]"
    )
    got, text = light(*VERBS, code=f"sys.exit({codes} != [(0, 2)] * len(sys.argv[1:]))")
    assert got == 0, text


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_has_each_of_its_own_options(verb):
    text = help_text(verb)
    assert [key for key in options_of(verb) if f"{key}=" not in text] == []


def test_the_configuration_can_only_name_what_is_allowed(tmp_path, capsys):
    marker = tmp_path / "x"
    text = faults(capsys, "callback.x._target_=os.mkdir", f"callback.x.path={marker}")
    assert "os.mkdir" in text
    assert not marker.exists()


def test_a_tracker_sets_only_variables_of_trackers(capsys):
    text = faults(capsys, "+tracker.environment.GIT_CONFIG_COUNT='1'")
    assert "GIT_CONFIG_COUNT" in text
    assert "WANDB_" in text


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "seed=range(0,1000000000)"], "1,000,000,000 jobs"),
        (["-m", "learning_rate=range(0,1,1e-12)"], "1,000,000,000,000 jobs"),
        (["-m", "seed=range(0,10,0)"], "a range with a step of 0"),
        (["seed=range(0,nan)"], "without an end"),
        (["--info", "defaults", "trainer.args.run_name=\x1b"], "LexerNoViableAltException"),
        (["seed=shuffle(range(0,1000000000))", "--lr=1"], "1,000,000,000 values to shuffle"),
        (["seed=[" + " " * 100_000 + "x"], "type      leave seed out"),
        (["launcher.num_processes=1000000"], "at most 1024"),
        (["launcher.num_processes=x", "batch=64"], "the text x"),
        (["launcher.num_processes=0", "batch=64"], "at least 1"),
        (["trainer.args.per_device_train_batch_size=0", "batch=64"], "at least 1"),
        (["batch=-4"], "type      batch=1"),
        (["batch=64", "trainer.args=null"], "missing, but the runner needs it"),
        (["-m", "seed=0,1", "launcher.jobs=1000000"], "at most 1024"),
        (["~seed"], "type      leave ~seed out"),
        (["~output_root"], "type      leave ~output_root out"),
        (["~name"], "type      leave ~name out"),
        (["~nothing"], "there is no such key to delete"),
        (["dataset.split.train='train[:0]'"], "no row: runner://dataset/toy_sort train[:0]"),
        (["dataset.split.train='train[:200%]'"], "at most 100%"),
        (["dataset.split.train='train[:_]'"], "which is not a slice"),
        ([f"dataset.split.eval='train[{'9' * 5000}:]'"], "which is not a slice"),
        (
            ["trainer=grpo", "reward=remote", "reward.remote.url='file:///a'"],
            "begins with http:// or https://",
        ),
        (
            ["trainer=grpo", "reward=remote", "reward.remote.url='http://[::1'"],
            "'http://[::1': Invalid IPv6",
        ),
        (
            ["trainer=grpo", "reward=remote", "reward.remote.url='http://a:99999/'"],
            "Port out of range",
        ),
        (["allow=3"], "type      leave allow out"),
        (["dataset.map=mine.f"], "type      dataset.map._target_=mine.f 'allow=[mine]'"),
        (["trainer.args.report_to=wandbb"], "type      trainer.args.report_to=wandb"),
        (
            ["trainer=dpo", "trainer.ref_model.path=x"],
            "trainer.ref_model._target_=runner.model.load.load_model",
        ),
        (["trainer=kto", "trainer.ref_model={path: x}"], "trainer.ref_model.path=x"),
        (
            ["trainer=grpo", "trainer.reward_processing_classes=[x]"],
            "what is built from a _target_",
        ),
        (["import", "/dev/zero"], "a pipe, a socket or a device"),
    ],
)
def test_endless_or_impossible_requests_are_refused_at_once(words, message, capsys):
    assert message in faults(capsys, *words)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK"])
def test_a_variable_of_processes_that_is_no_number_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, "x")
    assert main(["trainer.args.max_steps=1"]) == 5
    assert f"unset {name}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_defaults_that_name_each_other_are_named(tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    for first, second in ("ab", "ba"):
        (tmp_path / "experiment" / f"{first}.yaml").write_text(
            f"# @package _global_\ndefaults: [{second}, _self_]\n"
        )
    text = faults(capsys, "--config-dir", str(tmp_path), "experiment=a", "--dry-run")
    assert (
        "experiment/a -> experiment/b -> experiment/a" in text
        or "experiment/b -> experiment/a -> exp" in text
    )


@pytest.mark.parametrize(
    "words", [["trainer=dpo", "foo=1", "--debug"], ["peft=null"], ["--config-dir"]]
)
def test_a_bad_command_line_is_exit_code_2_however_it_is_bad(words, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err


def test_an_output_root_that_is_a_file_is_a_fault_of_the_environment(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main([f"output_root={tmp_path / 'file'}"]) == 5
    assert "output_root=" in capsys.readouterr().err


@pytest.mark.slow
def test_a_slice_of_rows_needs_no_quotes_beyond_those_of_the_shell(capsys):
    assert main(["dataset=tldr", "dataset.split.train=train[:500]", "--dry-run"]) == 0
    assert main(["dataset=tldr", "dataset.split.train='train[:500]'", "--dry-run"]) == 0
    first, second = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith("new")
    )
    assert first == second


def test_typed_epochs_are_not_overruled_by_the_steps_of_the_model(capsys):
    assert "overruled by max_steps=80" in faults(capsys, "trainer.args.num_train_epochs=2")
    assert main(["trainer.args.num_train_epochs=2", "trainer.args.max_steps=-1", "--dry-run"]) == 0


@pytest.mark.slow
def test_a_rollout_that_cannot_be_dealt_into_mini_batches(capsys):
    assert "does not divide the 32 rows of a process" in faults(
        capsys, "trainer=ppo", "trainer.args.num_mini_batches=5"
    )
    assert main(["trainer=ppo", "trainer.args.num_mini_batches=8", "--dry-run"]) == 0


@pytest.mark.slow
def test_a_reward_model_that_ppo_is_given_by_path_is_a_reward(capsys):
    assert "reward" in faults(capsys, "trainer=ppo", "reward=none")
    assert (
        main(["trainer=ppo", "reward=none", "trainer.args.reward_model_path=org/name", "--dry-run"])
        == 0
    )


@pytest.mark.parametrize("word", ["trainer.args.seed=7", "trainer.args.save_only_model=true"])
def test_fields_that_the_runner_sets_are_refused(word, capsys):
    assert word.partition("=")[0] in faults(capsys, word)


@pytest.mark.slow
def test_a_group_that_is_deleted_or_an_entry_that_is_null_is_a_group_without_a_part(capsys):
    assert main(["~metric", "callback.x=null", "--dry-run"]) == 0


@pytest.mark.slow
def test_two_ways_to_say_the_same_are_one_run(capsys):
    ways = (
        ("kl_coef=0.3",),
        ("trainer.args.beta=0.3",),
        ("kl_coef=3e-1",),
        ("kl_coef=0.3", "trainer.args.max_grad_norm=1"),
        ("kl_coef=0.3", "trainer.args.max_grad_norm=1.0"),
    )
    keys = []
    for words in ways:
        assert main(["trainer=dpo", *words, "--dry-run"]) == 0
        keys.append(capsys.readouterr().out.strip().rpartition("-")[2])
    assert len(set(keys[:3])) == 1
    assert len(set(keys[3:])) == 1


WORLD = {
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
}  # as torchrun sets it; below, as accelerate does for a CPU, where it starts one process
ON_CPU = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_USE_CPU": "True",
    "MASTER_ADDR": "127.0.0.1",
}

MACHINES = ["launcher=accelerate", "launcher.num_machines=2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "words", "message"),
    [
        (
            {},
            ["launcher.machine_rank=1", "launcher.rendezvous=a.b-c:80"],
            "with 1 of 2 processes; {}a.b-c:80",
        ),
        (
            {
                "SLURM_NODEID": "1",
                "SLURM_JOB_ID": "70042",
                "SLURM_JOB_NODELIST": "n[01-03,7]-a[2,3],gpu1",
            },
            ["launcher.num_processes=3"],
            "machine 1 of 2, with 3 of 6 processes; {}n01-a2:20042",
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            ["launcher.rendezvous=a:80"],
            "machine 1 of 2, with 1 of 2 processes; {}a:80",
        ),
    ],
)  # fmt: skip
def test_each_of_several_machines_knows_its_part(variables, words, message, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main([*MACHINES, *words, "batch=24", "--dry-run"]) == 0
    assert message.format("they meet at ") in capsys.readouterr().out
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "5")
    assert main([*MACHINES, *words, "--dry-run"]) == 5


@pytest.mark.slow
def test_the_key_knows_the_processes_that_torchrun_has_started(monkeypatch, capsys):
    assert main(["--dry-run"]) == main(["launcher.num_processes=2", "--dry-run"]) == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["--dry-run"]) == 5
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert main(["--dry-run"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("new")]
    alone, joined, world = (line.rpartition("-")[2] for line in lines)
    assert alone != joined == world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "words", "finding", "fix"),
    [
        (
            WORLD,
            ["launcher.num_processes=2"],
            "one of 2 processes",
            "without launcher.num_processes=2",
        ),
        (WORLD, ["launcher.num_processes=1"], "1, in one of 2", "without launcher.num_processes=1"),
        (WORLD, ["-m", "seed=0,1"], "a sweep", "launcher.num_processes=2"),
        (WORLD, ["experiment=toy_rlhf"], "stages", "launcher.num_processes=2"),
        (ON_CPU, [], "accelerate launch", "launcher.num_processes=2"),
        (
            WORLD,
            ["launcher.rendezvous=a:1", *MACHINES],
            "4, in one of 2",
            "without launcher.num_machines=2",
        ),
        (
            {},
            MACHINES,
            "null, but 2 machines have to connect",
            "launcher.rendezvous=<its name>:29500",
        ),
        (
            {},
            [*MACHINES, "launcher.rendezvous=node1"],
            "found     node1",
            "launcher.rendezvous=<its name>:29500",
        ),
        (
            {},
            [*MACHINES, "launcher.rendezvous=a:70000", "launcher.machine_rank=2"],
            "2 (typed)",
            "num_machines=3",
        ),
        (
            {},
            ["launcher=accelerate", "launcher.rendezvous=a:1"],
            "1, but",
            "launcher.num_machines=2",
        ),
        (
            {"SLURM_NODEID": "1"},
            ["launcher=accelerate"],
            "1 (SLURM_NODEID)",
            "launcher.num_machines=2",
        ),
        (
            {},
            ["launcher.rendezvous=a:1", *MACHINES, "-m", "seed=0,1"],
            "on 2 machines",
            "launcher.num_machines=1",
        ),
        (
            {},
            ["launcher.rendezvous=a:1", *MACHINES, "launcher.timeout_seconds=9"],
            "on 2 machines",
            "launcher.timeout_seconds=null",
        ),
    ],
)
def test_processes_that_another_launcher_starts_are_refused_where_they_are_not_one_world(
    variables, words, finding, fix, tmp_path, monkeypatch, capsys
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = faults(capsys, *words)
    assert finding in text
    assert fix in text
    assert not list(tmp_path.iterdir())
