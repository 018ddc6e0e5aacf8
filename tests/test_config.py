"""Composition.

Every key may be typed, all faults are reported at once, nodes become objects in one place.
"""

from dataclasses import fields

import pytest
from laid import jobs_of

from runner.__main__ import main
from runner.config import build, speed
from runner.config.composition import compose, differences
from runner.config.experiment import (
    Experiment,
    RewardPart,
    Tolerate,
    Tracking,
    TrainerPart,
)
from runner.config.limits import read_yaml
from runner.config.menu import read_options
from runner.config.override import expand, parse
from runner.config.provenance import read_provenance
from runner.config.user_folder import use_folders
from runner.errors import ConfigError
from runner.io.files import MENU
from runner.run.key import key_of
from runner.validate.context import ValidationContext


def test_any_field_can_be_set_without_a_plus():
    composed = compose(["trainer=dpo", "trainer.args.max_steps=3", "+trainer.args.beta=0.5"])
    assert composed.cfg["trainer"]["args"]["max_steps"] == 3
    assert composed.cfg["trainer"]["args"]["beta"] == 0.5
    assert composed.typed == {"trainer", "trainer.args.max_steps", "trainer.args.beta"}


def test_a_list_takes_the_place_of_a_mapping_and_a_mapping_that_of_a_list(tmp_path):
    file = tmp_path / "gcd.yaml"
    file.write_text("defaults: [override /environment: reasoning_gym]\nenvironment: {tasks: [gcd]}")

    def tasks(*words):
        return compose(words).cfg["environment"]["tasks"]

    assert tasks("experiment=reasoning_gym_grpo", "environment.tasks=[gcd]") == ["gcd"]
    assert tasks(f"experiment={file}", "environment.tasks={gcd: {}}") == {"gcd": {}}
    with pytest.raises(ConfigError, match=r"the list \[gcd\]") as error:
        tasks(f"experiment={file}", "environment.tasks.gcd.max_value=9")
    assert error.value.faults[0].fix == "environment.tasks={gcd:{max_value:9}}"


@pytest.mark.slow
def test_the_default_name_says_trainer_model_and_dataset():
    assert compose(["trainer=dpo", "dataset=toy_reviews"]).cfg["name"] == "dpo-tiny-toy_reviews"


def test_kl_coef_reaches_what_the_trainer_calls_it_and_the_trainers_own_key_wins():
    def beta(*overrides):
        return compose(["trainer=dpo", *overrides]).cfg["trainer"]["args"]["beta"]

    assert beta("kl_coef=0.3") == 0.3
    assert beta("trainer.args.beta=0.5") == 0.5
    with pytest.raises(ConfigError, match=r"trainer.args.beta\n.* kl_coef, which is also set"):
        beta("kl_coef=0.3", "trainer.args.beta=0.5")


def test_a_trainer_without_a_kl_coefficient_refuses_one():
    with pytest.raises(ConfigError, match="nothing in this configuration reads it"):
        compose(["trainer=sft", "kl_coef=0.1"])


def test_missing_options_are_reported_together_with_the_nearest():
    with pytest.raises(ConfigError) as error:
        compose(["trainer=dop", "dataset=toy_reveiws", "peft=lora"])
    assert [fault.where for fault in error.value.faults] == ["trainer", "dataset"]
    assert error.value.faults[0].fix == "trainer=dpo"
    assert error.value.faults[1].fix == "dataset=toy_reviews"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "where", "message"),
    [
        ("trainer=classification", "trainer", "one score of a text"),
        ("trainer.head=embedding", "trainer.head", "one score of a text"),
        (
            "trainer._target_=sentence_transformers.SentenceTransformerTrainer",
            "trainer._target_",
            "embeddings",
        ),
        ("num_labels=3", "num_labels", "one score per text"),
        (
            "model._target_=transformers.AutoModelForSequenceClassification.from_pretrained",
            "model._target_",
            "no trainer here learns",
        ),
    ],
)
def test_classes_and_vectors_of_texts_are_refused(capsys, word, where, message):
    assert main([word, "metric=none", "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert f"  {where}\n" in err
    assert message in err
    assert "trainer=reward" in err


@pytest.mark.slow
def test_several_options_of_a_group_that_takes_one_are_all_refused(tmp_path):
    """Otherwise the last one would win silently.

    Options of a group that names its parts do combine.
    """
    with pytest.raises(ConfigError) as caught:
        compose(
            [
                "trainer=[sft,dpo]",
                "dataset=[toy_sort,toy_reviews]",
                "tracker=[wandb,mlfow]",
                "model=tniy",
                "quant=[]",
            ]
        )
    faults = {fault.where: fault for fault in caught.value.faults}
    assert set(faults) == {"trainer", "dataset", "tracker", "model", "quant"}
    assert faults["trainer"].found.startswith("[sft, dpo]")
    assert "-m trainer=sft,dpo" in faults["trainer"].fix
    assert "dataset=mixture" in faults["dataset"].fix
    assert faults["tracker"].fix == "tracker=mlflow"

    (tmp_path / "experiment").mkdir()
    lists = {"trainer": "sft, dpo", "peft": "lora", "callback": "samples, early_stopping"}
    defaults = (
        "defaults: "
        f"[{', '.join(f'override /{group}: [{names}]' for group, names in lists.items())}]"
    )
    (tmp_path / "experiment" / "two.yaml").write_text(f"# @package _global_\n{defaults}\n")
    with pytest.raises(ConfigError) as caught:
        compose(["experiment=two", "~quant"], [tmp_path])
    refused = [(fault.where, fault.found.partition("]")[0]) for fault in caught.value.faults]
    assert refused == [("peft", "[lora"), ("trainer", "[sft, dpo")]
    assert (
        compose(["experiment=two", "trainer=dpo", "peft=lora"], [tmp_path]).choices["trainer"]
        == "dpo"
    )
    with pytest.raises(ConfigError) as caught:
        compose(["trainer=sft,dpo", "reward=length,format"])
    assert [fault.fix for fault in caught.value.faults] == [
        "python -m runner -m <the same words>",
        "python -m runner -m <the same words>, or 'reward=[length,format]'",
    ]


def test_a_value_that_must_be_given_is_named():
    with pytest.raises(ConfigError) as error:
        compose(["dataset=hub"])
    assert [fault.where for fault in error.value.faults] == ["dataset.path"]


@pytest.mark.parametrize(
    ("word", "where", "finding", "fix"),
    [
        ("a=[1", "command line", "'a=[1': ", "'a=[1]'"),
        ("=3", "command line", "'=3': no key before the equals sign", "leave =3 out"),
        ("seed=${nothing}", "seed", "${nothing} refers to nothing", "leave seed out"),
        ("seed=${seed}", "seed", "it refers to itself", "leave seed out"),
        ("seed=${no:such}", "seed", "there is no resolver no", "leave seed out"),
        (
            "seed=${oc.env:NOT_THERE}",
            "seed",
            "the environment has no NOT_THERE",
            "export NOT_THERE=<value>",
        ),
    ],
)
def test_a_word_that_hydra_cannot_read_is_a_fault_with_a_fix(word, where, finding, fix):
    with pytest.raises(ConfigError) as caught:
        compose([word])
    (fault,) = caught.value.faults
    assert (fault.where, fault.found[: len(finding)], fault.fix) == (where, finding, fix)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("defaults: [override /trainer: sftt]\n", "there is no trainer/sftt"),
        ("seed: 1\nseed: 2\n", "duplicate key seed"),
        ("seed: [1\n", "expected ',' or ']'"),
        (
            "defaults:\n- /peft: lora\n- /trainer: [sft, dpo]\n",
            "[sft, dpo]: only the last one would count",
        ),
        (
            f"name: ${{oc.decode:'[{'1,' * 30_000}1]'}}\n",
            "60,018 characters of texts that refer to others",
        ),
        (
            f"t: '[{'1,' * 30_000}1]'\nname: ${{oc.decode:${{t}}}}\n",
            "60,021 characters, with all that it refers to",
        ),
        (f"t: '{'x' * 9_000}${{seed}}'\nstages: ['{'${t}' * 9}']\n", "81,099 characters"),
    ],
)
def test_a_file_that_hydra_cannot_read_is_a_fault(tmp_path, text, finding):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "x.yaml").write_text(f"# @package _global_\n{text}")
    with pytest.raises(ConfigError) as caught:
        compose(["experiment=x"], [tmp_path])
    assert finding in caught.value.faults[0].found


@pytest.mark.slow
def test_a_users_folder_adds_and_shadows(tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "dpo.yaml").write_text(
        "# @package _global_\nlearning_rate: 7.0\ntrainer: {a: '${learning_rate}'}\n"
    )
    (tmp_path / "trainer" / "mine.yaml").write_text("b: ${learning_rate}\n")
    # the default model brings keys of its own for the trainer
    hub_model = ("model=hub", "model.path=org/name")
    try:
        assert compose(["trainer=dpo", *hub_model], [tmp_path]).cfg["trainer"] == {"a": 7.0}
        assert (
            "b"
            in compose(["trainer=mine", "learning_rate=1", *hub_model], [tmp_path]).cfg["trainer"]
        )
    finally:
        use_folders([])
    assert "_target_" in compose(["trainer=dpo"]).cfg["trainer"]


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (["a=1"], [["a=1"]]),
        (["a=1,2", "b=x"], [["a=1", "b=x"], ["a=2", "b=x"]]),
        (["a=1,2", "b=3,4"], [["a=1", "b=3"], ["a=1", "b=4"], ["a=2", "b=3"], ["a=2", "b=4"]]),
        (["a=range(1,3)", "~c"], [["a=1", "~c"], ["a=2", "~c"]]),
        (["a=[1,2]"], [["a=[1,2]"]]),
    ],
)
def test_jobs_of_a_sweep(words, jobs):
    assert [*jobs_of(words)] == jobs


def concatenate(first, second="b", *, third="c"):
    return first + second + third


HERE = f"{__name__}.concatenate"


def test_build_calls_inner_nodes_first():
    node = {"_target_": HERE, "first": {"_target_": HERE, "first": "a"}, "third": "d"}
    assert build.build(node) == "abcbd"
    assert build.build(node, third="e") == "abcbe"
    assert build.build({"x": [node]}) == {"x": ["abcbd"]}
    assert build.build(None) is None


def test_build_binds_arguments():
    assert build.build({"_target_": HERE, "_partial_": True, "second": "x"})("a") == "axc"


def test_an_argument_that_a_target_does_not_take_is_a_fault_and_what_it_raises_is_not():
    with pytest.raises(ConfigError, match="unexpected keyword argument 'fourth'"):
        build.build({"_target_": HERE, "first": "a", "fourth": "d"})
    with pytest.raises(TypeError):
        build.build({"_target_": HERE, "first": 1})


def test_serve_gives_only_what_is_asked_for():
    assert build.serve({"_target_": HERE, "first": "a"}, third="t", unknown="u") == "abt"


def test_differences():
    ours = {"a": {"b": 1, "c": 2}}
    theirs = {"a": {"b": 1, "c": 3}, "d": 4}
    assert list(differences(ours, theirs)) == [("a.c", 2, 3), ("d", None, 4)]


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["batch=64"], (32, 2)),  # the rows of a micro-batch are those of the trainer
        (["batch=64", "launcher.num_processes=2"], (32, 1)),
        (["batch=8", "launcher.num_processes=2"], (4, 1)),
        (["batch=60", "trainer.args.per_device_train_batch_size=8"], (6, 10)),
        (["batch=null"], (32, None)),
    ],
)
def test_a_batch_is_shared_by_processes_and_micro_batches(words, made):
    args = compose(words).cfg["trainer"]["args"]
    sizes = args["per_device_train_batch_size"], args.get("gradient_accumulation_steps")
    assert sizes == made


@pytest.mark.parametrize(
    ("words", "where", "fix"),
    [
        (["batch=63", "launcher.num_processes=2"], "batch", "batch=64"),
        (["batch=1", "launcher.num_processes=4"], "batch", "batch=4"),
        (["batch=0"], "batch", "batch=1"),
        (
            ["batch=64", "trainer.args.gradient_accumulation_steps=2"],
            "trainer.args.gradient_accumulation_steps",
            "leave trainer.args.gradient_accumulation_steps out",
        ),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(words, where, fix):
    with pytest.raises(ConfigError) as refused:
        compose(words)
    (fault,) = refused.value.faults
    assert (fault.where, fault.fix) == (where, fix)


@pytest.mark.parametrize(("words", "expected"), [([], None), (["peft.r=4"], {"r": 4})])
def test_settings_of_an_option_go_with_the_option(words, expected):
    peft = compose(["experiment=ppo_pythia_tldr", "peft=none", *words]).cfg["peft"]
    assert peft == (expected and {"target_modules": ["query_key_value"]} | expected)


# --- speed=max ------------------------------------------------------------------------------------

GROUPED = "trainer.args.train_sampling_strategy=group_by_length"


@pytest.fixture
def chosen(monkeypatch):
    """The arguments that speed=max sets on GPUs of a compute capability."""

    def call(*words, capability=0.0):
        monkeypatch.setattr(speed, "compute_capability", lambda: capability)
        before, after = (compose([*words, *extra]) for extra in ((), ("speed=max",)))
        assert "speed" not in after.cfg
        told = len(read_options("speed")["max"]) + (after.sampler is not None)
        assert len(after.speed) == told
        assert not before.speed
        args_before = before.cfg["trainer"]["args"]
        args_after = after.cfg["trainer"]["args"]
        assert args_after | args_before == args_after, "what was set stays"
        return set(args_after) - set(args_before)

    return call


@pytest.mark.slow
def test_speed_sets_what_is_sound_for_the_trainer_and_the_machine(chosen):
    grouping = "train_sampling_strategy"
    workers = "dataloader_num_workers"
    assert chosen("trainer=sft") == chosen("trainer=reward") == {grouping}
    teacher = "trainer.teacher_model.path=runner://model/tiny"
    assert (
        chosen("trainer=kto")
        == chosen("trainer=grpo", "reward=length")
        == chosen("trainer=gkd", teacher)
        == set()
    )
    assert chosen("trainer=ppo", "reward=length", capability=9.0) == {"bf16", "tf32", workers}
    assert chosen("trainer=sft", capability=7.5) == {grouping, workers}
    flash = ("trainer=sft", "model.attention=flash_attention_2")
    assert chosen(*flash) == {"packing"}
    assert chosen(*flash, "dataset.streaming=true") == set()
    assert chosen("trainer=sft", GROUPED, "trainer.args.bf16=null", capability=9.0) == {
        "tf32",
        workers,
    }


@pytest.mark.slow
def test_a_run_is_the_same_whether_speed_or_the_user_has_set_it():
    keys = {key_of(compose(["trainer=sft", "name=a", word]).cfg) for word in ("speed=max", GROUPED)}
    assert len(keys) == 1
    assert key_of(compose(["trainer=sft"]).cfg) not in keys
    (setting, default) = read_provenance(compose(["speed=max"]).cfg, ["speed=max"]).of(
        GROUPED.partition("=")[0]
    )
    assert setting.place.startswith("conf/speed/max.yaml:")
    assert default.text == "random"


def test_another_speed_is_a_fault_that_names_max():
    for word, where, fix in [
        ("speed=fast", "speed", "speed=max"),
        ("speed.x=true", "speed.x", "trainer.args.x="),
    ]:
        with pytest.raises(ConfigError) as caught:
            compose(["speed=max", word] if "." in word else [word])
        (fault,) = caught.value.faults
        assert fault.where == where
        assert str(fault).rpartition("type")[2].strip().startswith(fix)


def test_each_speed_is_a_field_of_some_trainer():
    configs = ValidationContext({}).trainer_configs.values()
    fields = set().union(*(config.parameters for config in configs))
    assert set(read_options("speed")["max"]) <= fields


@pytest.mark.slow
def test_a_name_in_any_script_may_be_in_a_list_or_a_key(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = (
        "# @package _global_\nname: x\ndataset:\n  split:\n"
        '    eval: {算auc的dataset: eval, b: "eval[:5]"}\n'
    )
    text += "metric:\n  exact:\n    on: [b]\n"  # which YAML reads as true
    (tmp_path / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    assert compose(["experiment=mine"], [tmp_path]).cfg["metric"]["exact"]["on"] == ["b"]
    words = expand(["experiment=mine", "metric.exact.on=[算auc的dataset]"], {})
    assert compose(words, [tmp_path]).cfg["metric"]["exact"]["on"] == ["算auc的dataset"]
    with pytest.raises(ConfigError) as refused:
        parse(["dataset.split.eval={算auc的dataset: eval}"])
    assert "in a file of --config-dir" in refused.value.faults[0].fix


# --- A configuration as an object -----------------------------------------------------------------


def test_keys_and_arguments_of_an_experiment_are_read_by_name():
    words = [
        "trainer=dpo",
        "launcher.num_processes=2",
        "tolerate.truncated=0.5",
        "on_sick=rollback",
    ]
    experiment = compose(words).experiment
    assert (experiment.name, experiment.seed) == ("dpo-tiny-toy", 0)
    assert (experiment.trainer.target, experiment.trainer.form) == ("trl.DPOTrainer", "preference")
    assert experiment.trainer.args["_target_"] == "trl.DPOConfig"
    assert "form" not in experiment.trainer.arguments
    assert "args" in experiment.trainer.arguments
    assert experiment.launcher.num_processes == experiment.launcher.all_processes == 2
    assert experiment.tolerate.truncated == 0.5
    assert experiment.on_sick == "rollback"
    assert experiment.peft is experiment.quant is experiment.loss is None


def test_configs_of_earlier_versions_get_defaults_and_lose_unknown_keys():
    old = {"name": "old", "gone": 3, "trainer": {"form": "prompt", "head": "lm", "gone": True}}
    experiment = Experiment.read(old)
    assert experiment.attempts == Experiment.attempts == 4
    assert experiment.output_root == "outputs"
    assert experiment.tolerate.truncated == 0.1
    assert experiment.trainer.evaluates
    assert experiment.launcher.num_processes == 1
    assert experiment.tracker.report_to == "none"
    assert experiment.rewards == {}


def test_null_is_not_the_default_of_a_key_that_may_be_null():
    experiment = Experiment.read({"reward": {"slow": {"timeout": None}, "usual": {}}})
    assert experiment.rewards["slow"].timeout is None
    assert experiment.rewards["usual"].timeout == RewardPart.timeout == 1800


def test_a_single_reward_has_the_name_of_its_function():
    node = {"_target_": "runner.reward.rule.length", "weight": 2.0}
    assert Experiment.read({"reward": node}).rewards["length"].weight == 2.0
    assert Experiment.read({"reward": {"short": node}}).rewards["short"].weight == 2.0


def test_the_name_of_an_alarm_is_a_key_of_tolerate_too():
    tolerate = Tolerate.read({"kl": 20, "frozen": True})
    assert (tolerate.alarm("kl"), tolerate.alarm("frozen"), tolerate.alarm("diverged")) == (
        20,
        True,
        None,
    )


def test_defaults_repeated_in_the_menu_equal_the_declared_ones():
    menu = read_yaml(MENU / "config.yaml")
    declared = {
        key.name: key.default for key in fields(Experiment) if key.init and key.name != "name"
    }
    repeated = {key: menu[key] for key in declared if key in menu}
    assert {key: value or None for key, value in repeated.items()} == {
        key: declared[key] or None for key in repeated
    }
    kinds = {"trainer": TrainerPart, "tracker": Tracking}
    needless = []
    for group, kind in kinds.items():
        for option, node in read_options(group).items():
            part = node.get("trainer", node)
            for key in fields(kind):
                if key.init and key.name in part and part[key.name] == key.default:
                    needless.append(f"{group}/{option}: {key.name}")
    assert needless == ["tracker/none: report_to"]
