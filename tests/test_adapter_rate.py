"""The learning rate with an adapter: a multiple of the trainer's, unless one was chosen."""

import re

import pytest
import yaml

from runner.__main__ import main
from runner.config import composition
from runner.config.composition import compose
from runner.config.experiment import AdapterPart
from runner.config.limits import read_yaml
from runner.config.menu import read_options
from runner.config.user_folder import use_folders
from runner.errors import ConfigError
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate
from runner.io.files import MENU
from runner.launch.compose.stages import compose_runs
from runner.report.axis import axes_of
from runner.run import open_run
from runner.run.key import key_of
from runner.schema.read import read_signature
from runner.schema.text import select
from runner.training.components.start_model import own_tuner

HUB = ("model=hub", "model.path=org/name")
SHIPPED = ("model=hub", "model.path=runner://model/tiny")  # without the rate of its option


def rate_of(*words):
    composed = compose([*words])
    assert composed.cfg["trainer"]["args"]["learning_rate"] == composed.cfg["learning_rate"]
    return composed.cfg["learning_rate"]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("trainer", "rate"), [("sft", 2e-4), ("dpo", 1e-5), ("ppo", 3e-5)])
def test_lora_learns_at_ten_times_the_rate_of_each_trainer(trainer, rate):
    assert rate_of(f"trainer={trainer}", *HUB, "peft=lora") == rate
    usual = float(read_options("trainer")[trainer]["learning_rate"])
    assert usual == pytest.approx(rate / 10)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "rate"),
    [
        (["peft=qlora", *HUB], 2e-4),
        (["peft=prompt", *HUB], 2e-2),
        (["peft=freeze", *HUB], 2e-5),
        (["peft=lora"], 1e-4),  # the model that ships brings it for its size
        (["peft=lora", *HUB, "learning_rate=2e-5"], 2e-5),
        (["peft=lora", *HUB, "peft.learning_rate_factor=5"], 1e-4),
        (["peft=lora", *HUB, "peft.learning_rate_factor=null"], 2e-5),
        (["experiment=sft_qwen_tldr"], 2e-5),
        (["experiment=toy_dpo", "peft=lora"], 1e-4),
        (["peft=lora", *HUB, "learning_rate=${seed}", "seed=1"], 1),
    ],
)
def test_a_rate_that_somebody_has_chosen_is_left(words, rate):
    assert rate_of(*words) == rate


def test_a_rate_of_the_arguments_alone_is_left_and_an_optimizer_follows_the_multiple():
    typed = compose(["peft=lora", *HUB, "trainer.args.learning_rate=5e-5"])
    assert typed.rate is None
    assert typed.cfg["trainer"]["args"]["learning_rate"] == 5e-5
    followed = compose(["peft=lora", *HUB, "optimizer=adamw"])
    assert followed.cfg["optimizer"]["lr"] == 2e-4


@pytest.mark.slow
def test_a_rate_in_a_file_of_the_users_own_is_left(tmp_path):
    for group, name, text in [
        ("trainer", "mine", "defaults: [sft]\nlearning_rate: 7e-6\n"),
        ("experiment", "named", "learning_rate: 3e-6\n"),
        ("experiment", "silent", "defaults: [override /peft: lora]\n"),
        ("peft", "wide", "defaults: [lora]\nr: 64\n"),
    ]:
        (tmp_path / group).mkdir(exist_ok=True)
        head = "" if group == "peft" else "# @package _global_\n"
        (tmp_path / group / f"{name}.yaml").write_text(head + text)
    rates = {}
    try:
        for words in (
            ["trainer=mine", "peft=lora"],
            ["experiment=named", "peft=lora"],
            ["experiment=silent"],
            ["peft=wide"],
        ):
            rates[words[0]] = compose([*words, *HUB], [tmp_path]).cfg["learning_rate"]
    finally:
        use_folders([])
    assert rates == {
        "trainer=mine": 7e-6,
        "experiment=named": 3e-6,
        "experiment=silent": 2e-4,
        "peft=wide": 2e-4,
    }


def test_the_files_are_not_listed_anew_for_options_of_ours(monkeypatch):
    groups = set()
    for file in MENU.glob("*/*.yaml"):
        if "learning_rate" in (read_yaml(file) or {}):
            groups.add(file.parent.name)
    assert groups == {"trainer", "model", "experiment"}
    monkeypatch.setattr(composition, "read_layers", None)
    assert compose(["trainer=dpo", "peft=lora"]).rate is None  # model=tiny brings one
    assert compose(["trainer=dpo", "peft=lora", *HUB]).rate is not None


def test_every_adapter_names_its_factor_in_its_file():
    factors = {}
    for name, option in read_options("peft").items():
        node = option.get("peft", option) or {}
        factors[name] = node.get("learning_rate_factor")
        signature = read_signature(node["_target_"]) if "_target_" in node else None
        is_adapter = signature is not None and "inference_mode" in signature.parameters
        assert is_adapter == (factors[name] is not None), name
    assert compose(["peft=vision_full_lora", *HUB]).cfg["peft"]["learning_rate_factor"] == 10
    assert min(filter(None, factors.values())) >= 5
    assert factors["lora"] == factors["qlora"] == 10


def test_the_page_has_the_rates_of_the_files():
    page = (MENU / "trainer" / "README.md").read_text()
    trainers = read_options("trainer")
    rates = re.findall(r"^\| (\w+) \| (\d+e-\d+) \| (\d+e-\d+) \|", page, re.MULTILINE)
    assert len(rates) == 7
    for trainer, usual, adapted in rates:
        assert float(trainers[trainer]["learning_rate"]) == float(usual)
        assert float(adapted) == pytest.approx(10 * float(usual))
    factors = {}
    for names, factor, rate in re.findall(
        r"^\| ([\w, ]+) \| (\d+) \| (\d+e-\d+) \|", page, re.MULTILINE
    ):
        factors |= dict.fromkeys(names.split(", "), int(factor))
        assert float(rate) == pytest.approx(2e-5 * int(factor))
    ours = {}
    for name, option in read_options("peft").items():
        node = option.get("peft", option) or {}
        if "learning_rate_factor" in node:
            ours[name] = node["learning_rate_factor"]
    assert factors == ours


def test_the_key_of_a_run_has_the_rate_and_not_the_factor():
    multiplied = compose(["peft=lora", *HUB]).cfg
    typed = compose(["peft=lora", *HUB, "learning_rate=2e-4", "peft.learning_rate_factor=3"]).cfg
    assert key_of(multiplied) == key_of(typed)
    del typed["peft"]["learning_rate_factor"]
    assert key_of(multiplied) == key_of(typed)
    assert key_of(compose(["peft=lora", *HUB, "learning_rate=2e-5"]).cfg) != key_of(typed)


def test_a_factor_that_is_typed_beside_a_rate_is_a_fault():
    with pytest.raises(ConfigError) as caught:
        compose_runs(["peft=lora", "peft.learning_rate_factor=5", "learning_rate=1e-4"])
    (fault,) = caught.value.faults
    assert fault.where == "peft.learning_rate_factor"
    with pytest.raises(ConfigError) as caught:
        compose_runs(["peft=lora", "peft.learning_rate_factor=-5", *SHIPPED])
    assert caught.value.faults[0].expected == "above 0"


@pytest.mark.slow
def test_why_and_the_plan_say_where_the_rate_comes_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["why", "learning_rate", "trainer=dpo", "peft=lora", *HUB]) == 0
    first, adapter, trainer, *_ = capsys.readouterr().out.splitlines()
    assert first == "learning_rate = 1e-5"
    assert re.match(r"  is    10 x 1e-6 +conf/peft/lora.yaml:\d+  \(peft.learning_rate", adapter)
    assert re.match(r"  over  1e-6 +conf/trainer/dpo.yaml:\d+", trainer)

    assert main(["-m", "peft=none,lora,ia3", *SHIPPED, "--dry-run"]) == 0
    rates = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rate")]
    assert rates[0] == (
        "rate      0.0002, 10 times the 2e-5 of all weights, for peft=lora; learning_rate= sets "
        "another"
    )
    assert len(rates) == 2

    assert main(["peft=lora", *SHIPPED, "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["learning_rate"] == 0.0002


@pytest.mark.quick(1)
@pytest.mark.parametrize("state", ["interrupted", "finished"])
def test_a_run_that_began_with_the_rate_of_all_weights_goes_on_with_it(
    state, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["peft=lora", *SHIPPED]
    earlier = compose([*words, "learning_rate=2e-5"]).cfg
    del earlier["peft"]["learning_rate_factor"]
    run = open_run(earlier, words)
    run.set_status(state, step=3)
    (composed,) = compose_runs(words)
    assert composed.cfg["learning_rate"] == 2e-5
    open_run(composed.cfg | {"on_sick": "rollback"}, words)  # which freezes its config again
    assert main([*words, "--dry-run"]) == 0
    out = capsys.readouterr().out.replace(f"{tmp_path}/", "")
    assert f"rate      2e-5, with which {run} began; learning_rate=0.0002" in out
    assert out.splitlines()[-1].split() == [state, str(run)]
    # The words that the note tells make another run.
    (anew,) = compose_runs([*words, "learning_rate=0.0002"])
    assert key_of(anew.cfg) != key_of(earlier)
    # A run of today that was given the old rate is not taken for the one without.
    words.append("seed=1")
    open_run(compose([*words, "learning_rate=2e-5"]).cfg, words)
    (seeded,) = compose_runs(words)
    assert seeded.cfg["learning_rate"] == 2e-4


def test_an_imported_adapter_keeps_the_default_of_its_tool(tmp_path):
    file = tmp_path / "sft.yaml"
    file.write_text("dataset_name: org/rows\nmodel_name_or_path: org/name\nuse_peft: true\n")
    draft = translate(read_file(file), "mine", "sft")
    assert select(draft.values, "learning_rate") == 2e-5


def test_a_report_shows_the_rate_and_not_the_factor():
    words = ("peft=none", "peft=lora", "peft=ia3")
    axes = axes_of([compose([word, *HUB]).cfg for word in words])
    assert [axis.key for axis in axes] == ["peft"]
    earlier = compose(["peft=lora", *HUB, "learning_rate=2e-5"]).cfg
    del earlier["peft"]["learning_rate_factor"]
    axes = axes_of([earlier, compose(["peft=lora", *HUB]).cfg])
    assert [axis.key for axis in axes] == ["learning_rate"]


class Tuner:
    """A tuner of the user's own, which no factor reaches."""

    def __init__(self, full: str):
        self.full = full

    def prepare_model(self, model):
        return model


def test_a_tuner_of_the_users_own_may_name_a_factor():
    node = {"_target_": f"{__name__}.Tuner", "full": "all", "learning_rate_factor": 3}
    assert own_tuner(AdapterPart.read(node)).full == "all"
