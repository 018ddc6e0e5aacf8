"""The schemas by which editors check and complete YAML: conf/ fits them, and mistakes do not."""

import json
import re
from typing import Any

import pytest

from runner.__main__ import main
from runner.command._editor_schemas import LINE, build_schemas, schema_line
from runner.command.schema import LIBRARIES
from runner.io.files import MENU
from runner.run import installed_version

FILES = sorted(MENU.rglob("*.yaml"))
SCHEMAS = MENU / ".schema"


def check(schema: str, *files) -> list[dict[str, Any]]:
    """The errors that check-jsonschema finds in files, each with filename, path and message."""
    checker = pytest.importorskip("check_jsonschema")
    from click.testing import CliRunner

    words = ["--schemafile", str(SCHEMAS / f"{schema}.json"), "-o", "json", *map(str, files)]
    answer = json.loads(CliRunner().invoke(checker.main, words).stdout)
    assert not answer.get("parse_errors")
    assert bool(answer["errors"]) == (answer["status"] == "fail")
    return answer["errors"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(MENU)))
def test_every_option_names_its_schema(path):
    text = path.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(LINE)]
    assert (path.parent / line.removeprefix(LINE)).resolve().parent == SCHEMAS
    if path.parent != MENU:
        assert line == schema_line(text, path.parent.name)


@pytest.mark.slow
def test_all_of_conf_fits_its_schemas():
    by_schema = {}
    for path in FILES:
        name = re.search(r"(\w+)\.json$", path.read_text(), re.MULTILINE)[1]
        by_schema.setdefault(name, []).append(path)
    # Options of a trainer set keys of the top level.
    assert by_schema.keys() | {"environment", "trainer", "own"} == {
        path.stem for path in SCHEMAS.iterdir()
    }
    for name, files in by_schema.items():
        assert check(name, *files) == []


@pytest.mark.slow
def test_the_schemas_are_those_of_the_installed_libraries():
    """After a change of a key, or of a library: python -m runner schema."""
    versions = ", ".join(f"{name} {installed_version(name)}" for name in LIBRARIES)
    if not json.loads((SCHEMAS / "loss.json").read_text())["$comment"].endswith(versions):
        pytest.skip("they are those of other versions")
    for name, schema in build_schemas().items():
        stored = json.loads((SCHEMAS / f"{name}.json").read_text())
        # A package that is not installed has no signature.
        for target, definition in schema.get("$defs", {}).items():
            if not definition or not stored["$defs"].get(target, True):
                schema["$defs"][target] = stored["$defs"][target] = {}
        assert {**stored, **json.loads(json.dumps(schema))} == stored, (
            f"python -m runner schema: {name}"
        )


DPO = "defaults: [{override /trainer: dpo}]\n"
LORA = "defaults: [{override /peft: lora}]\n"
# A file with a mistake, and the place that an editor marks, or a word of what it says there.
FAULTY = {
    # Keys and values of an experiment.
    "sead: 1": "sead",
    "seed: -1": "$.seed",
    "seed: one": "$.seed",
    "seed: 1.5": "$.seed",
    "learning_rate: 0": "$.learning_rate",
    "learning_rate: fast": "$.learning_rate",
    "kl_coef: -0.1": "$.kl_coef",
    "kl_coef: [0.1, 0.2]": "$.kl_coef",
    "batch: 0": "$.batch",
    "name: 7": "$.name",
    "on_sick: wait": "$.on_sick",
    "on_memory: third": "$.on_memory",
    "attempts: many": "$.attempts",
    "engine: sglang": "$.engine",
    "tolerate: {truncated: 3}": "$.tolerate.truncated",
    "tolerate: {trunkated: 0.1}": "trunkated",
    "tolerate: {no_end: 3}": "$.tolerate.no_end",
    "tracker: {report_to: wandbb}": "$.tracker.report_to",
    "tracker: {tags: one}": "$.tracker.tags",
    "peft: lora": "$.peft",
    "trainer: dpo": "$.trainer",
    "reward: [length]": "$.reward",
    "speed: {bf16: {value: true}}": "why",
    # The lists of options.
    "defaults: {override /trainer: dpo}": "$.defaults",
    "defaults: [{override /trainer: dpoo}]": "$.defaults",
    "defaults: [{override /trainr: dpo}]": "$.defaults",
    "defaults: [{override /trainer: [dpo, kto]}]": "$.defaults",
    "defaults: [{override /trainer: dpo, override /model: tiny}]": "$.defaults",
    "defaults: [{override /reward: [lenght]}]": "$.defaults",
    "stages: [trainer=sft]": "$.stages",
    "stages: {sft: trainer=sft}": "$.stages.sft",
    "stages: {sft: [trainer]}": "$.stages.sft",
    # Fields of the trainer that the defaults choose.
    DPO + "trainer: {args: {betta: 0.1}}": "betta",
    DPO + "trainer: {args: {beta: -1}}": "$.trainer.args.beta",
    DPO + "trainer: {args: {max_steps: ten}}": "$.trainer.args.max_steps",
    DPO + "trainer: {args: {max_steps: -2}}": "$.trainer.args.max_steps",
    DPO + "trainer: {args: {loss_type: sigmod}}": "$.trainer.args.loss_type",
    DPO + "trainer: {args: {loss_type: [sigmoid, hing]}}": "$.trainer.args.loss_type",
    DPO + "trainer: {args: {max_length: 1}}": "$.trainer.args.max_length",
    DPO + "trainer: {args: {lr_scheduler_type: cosin}}": "$.trainer.args.lr_scheduler_type",
    DPO + "trainer: {args: {bf16: maybe}}": "$.trainer.args.bf16",
    DPO + "trainer: {args: {report_to: [wandbb]}}": "$.trainer.args.report_to",
    DPO + "trainer: {args: {num_generations: 4}}": "num_generations",
    DPO + "trainer: {args: {model_init_kwargs: [1]}}": "$.trainer.args.model_init_kwargs",
    DPO + "trainer: {args: 3}": "$.trainer.args",
    DPO + "trainer: {argz: {}}": "argz",
    DPO + "trainer: {head: both}": "$.trainer.head",
    DPO + "trainer: {peft_config: {}}": "peft_config",
    "trainer: {_target_: trl.KTOTrainer, args: {_target_: trl.KTOConfig, betas: 1}}": "betas",
    # Arguments of other parts.
    LORA + "peft: {rank: 8}": "rank",
    LORA + "peft: {r: 0}": "$.peft.r",
    LORA + "peft: {lora_dropout: 1.0}": "$.peft.lora_dropout",
    LORA + "peft: {bias: some}": "$.peft.bias",
    "defaults: [{override /dataset: hub}]\ndataset: {split: {training: train}}": "training",
    "defaults: [{override /dataset: hub}]\ndataset: {limit: {train: few}}": "$.dataset.limit",
    "defaults: [{override /model: hub}]\nmodel: {dtype: float8}": "$.model.dtype",
    "defaults: [{override /model: hub}]\nmodel: {tokenizer: {pad: x}}": "pad",
    "defaults: [{override /launcher: slurm}]\nlauncher: {num_processes: 0}": "num_processes",
    "defaults: [{override /optimizer: adamw}]\noptimizer: {lr: -1}": "$.optimizer.lr",
    "reward: {length: {weight: heavy}}": "$.reward.length.weight",
    "reward: {length: {targt: 3}}": "targt",
    "metric: {exact: {better: left}}": "$.metric.exact.better",
}
GOOD = [
    DPO + "kl_coef: 0.05\ntrainer: {args: {beta: '${kl_coef}', max_steps: '???', bf16: null}}",
    DPO + "trainer: {_target_: my_lab.Trainer, args: {_target_: my_lab.Config, anything: 1}}",
    "trainer: {args: {anything: 1}}  # of a trainer that is chosen on the command line",
    "reward: {mine: {_target_: my_lab.rewards.words, scale: 2}, length: null}",
    "reward: {_target_: my_lab.rewards.words, scale: 2, weight: 0.5}",
    "defaults: [toy_dpo, _self_, {/weight@weight.answers: answers}, {override /reward: null}]",
]


@pytest.mark.slow
def test_mistakes_are_found_and_nothing_else(tmp_path):
    files = {}
    for index, text in enumerate([*FAULTY, *GOOD]):
        files[text] = tmp_path / f"{index}.yaml"
        files[text].write_text(f"# @package _global_\n{text}\n")
    found = {}
    for error in check("experiment", *files.values()):
        best = error.get("best_match") or error
        told = f"{error['path']} {error['message']} {best['path']} {best['message']}"
        found[error["filename"]] = found.get(error["filename"], "") + told
    missed = [text for text, word in FAULTY.items() if word not in found.get(str(files[text]), "")]
    assert len(FAULTY) >= 50
    assert missed == []
    assert [found[str(files[text])] for text in GOOD if str(files[text]) in found] == []


@pytest.mark.grid(6)
@pytest.mark.slow
@pytest.mark.parametrize("text", FAULTY)
def test_what_an_editor_marks_is_refused_before_a_start_as_well(
    text, tmp_path, monkeypatch, capsys
):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["experiment=mine", "--dry-run"]) == 2


@pytest.mark.slow
def test_a_folder_of_ones_own_gets_schemas_of_its_own_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "reward").mkdir(parents=True)
    (tmp_path / "my_rewards.py").write_text(
        "raise SystemExit('nothing is imported')\n"
        "def words(completions, count: int = 1):\n    '''``count`` words earn 1.'''\n"
    )
    option = tmp_path / "conf" / "reward" / "words.yaml"
    option.write_text("words:\n  _target_: my_rewards.words\n  count: 3\n")
    assert main(["schema"]) == 0
    line = f"{LINE}../.schema/reward.json"
    schemas = len(list(SCHEMAS.iterdir()))
    assert capsys.readouterr().out.splitlines() == [
        f"wrote     {schemas} schemas to conf/.schema/",
        f"add       {line}",
        "to        conf/reward/words.yaml",
    ]
    schema = json.loads((tmp_path / "conf" / ".schema" / "reward.json").read_text())
    count = schema["$defs"]["my_rewards.words"]["properties"]["count"]
    assert count["type"] == ["integer", "string"]
    assert (count["default"], count["description"]) == (1, "`count` words earn 1.")
    option.write_text(f"{line}\n{option.read_text()}")
    (tmp_path / "theirs.yaml").write_text("base_model: org/name\nrl: dpo\nlearning_rate: 1e-6\n")
    assert main(["import", "theirs.yaml", "name=theirs"]) == 0
    imported = (tmp_path / "conf" / "experiment" / "theirs.yaml").read_text()
    assert f"\n{LINE}../.schema/experiment.json\n" in imported
    capsys.readouterr()
    assert main(["schema"]) == 0
    assert "add " not in capsys.readouterr().out
    assert main(["schema", "conf"]) == 2
    assert "python -m runner schema to=conf" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_of_ones_own_fits_as_its_page_shows_it(tmp_path):
    page = (MENU / "experiment" / "README.md").read_text()
    (text,) = re.findall(r"```yaml\n(# own.yaml.*?)```", page, re.DOTALL)
    own = tmp_path / "own.yaml"
    own.write_text(text)
    assert check("own", own) == []
    for mistake in ("trainr: dpo", "seed: -1", "peft: [lora]", "trainer: 3"):
        own.write_text(f"{mistake}\n")
        assert check("own", own), mistake
