"""Held-out sets from other sources, system prompts in files, and template arguments for each row.

How they are typed, what is refused, and that training, sampling and previews use them.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from datasets import Json

from runner.__main__ import main
from runner.command._option import options_of, split_options
from runner.config.build import serve
from runner.config.composition import compose
from runner.config.experiment import Experiment
from runner.config.override import expand
from runner.dataset.convert import read_arguments
from runner.dataset.load import load_rows
from runner.dataset.mix import mix_rows
from runner.errors import ConfigError, DataError
from runner.launch.local import local
from runner.run.inputs import read_fingerprints
from runner.training.inspection import inspect_training
from runner.training.stand_in import first_rows_prepared

DIGITS = ("3 1 2 4", "9 8 7 6", "5 4 3 2", "1 3 2 4")
SORTED = [(f"Sort these digits: {digits}", " ".join(sorted(digits.split()))) for digits in DIGITS]
ASKED = [{"question": question, "answer": answer} for question, answer in SORTED]
ARGUMENTS = [{"enable_thinking": False}, None, {"style": "5"}, {"enable_thinking": True}]
# A template with an argument, as SmolLM3's: without thinking an answer opens with "no:".
THINKING = """{%- set opening = '' -%}
{%- if enable_thinking is defined and not enable_thinking -%}
{%- set opening = 'no:' -%}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['role'] == 'assistant' -%}
{{- opening + message['content'] + eos_token + '\n' -}}
{%- else -%}
{{- message['content'] + (' as ' + style if style is defined else '') + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' + opening -}}
{%- endif -%}
"""
TEMPLATE = "model.tokenizer.chat_template=think.jinja"


def turn(role, content):
    return {"role": role, "content": content}


def pairs(arguments=ARGUMENTS):
    for (question, answer), row_arguments in zip(SORTED, arguments, strict=False):
        sides = {"chosen": [turn("assistant", answer)], "rejected": [turn("assistant", "4 3 2 1")]}
        yield {"prompt": [turn("user", question)]} | sides | {"chat_template_kwargs": row_arguments}


def write(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with rows of three layouts, a prompt, a template, and an option that
    names sets.
    """
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "asked.jsonl", ASKED)
    write(tmp_path / "pairs.jsonl", pairs())
    (tmp_path / "think.jinja").write_text(THINKING)
    (tmp_path / "brief.txt").write_text("Be brief, 简短.\n", encoding="utf-8")
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "sets.yaml").write_text(
        "# @package _global_\ndataset:\n  split:\n    eval:\n      easy: 'eval[:2]'\n"
        "      算auc的dataset:\n"
        "        {path: asked.jsonl, form: prompt_completion, "
        "columns: {input: question, target: answer}}\n"
        "      法: {path: pairs.jsonl, split: 'train[:3]'}\n      same: {split: 'train[:4]'}\n",
        encoding="utf-8",
    )
    return tmp_path


# --- Held-out sets ------------------------------------------------------------------------------


def test_a_source_has_the_keys_of_the_dataset_but_for_its_own(folder):
    words = [
        "dataset.split.eval.path=asked.jsonl",
        "dataset.system=Hi",
        "dataset.limit.eval=3",
        "dataset.form=messages",
    ]
    cfg = compose([*words, "dataset.split.eval.form=prompt_completion"]).cfg
    source = cfg["dataset"]["split"]["eval"]
    assert (source["path"], source["form"], source["system"]) == (
        "asked.jsonl",
        "prompt_completion",
        "Hi",
    )
    assert source["split"] == {"train": None, "eval": "train"}
    assert source["limit"] == {
        "train": None,
        "eval": 3,
    }
    assert source["_target_"] == cfg["dataset"]["_target_"]
    assert source["_partial_"] is True
    assert list(read_fingerprints(cfg)) == ["dataset.split.eval.path"]


@pytest.mark.slow
def test_sets_of_several_sources_have_any_name(folder):
    cfg = compose(["experiment=sets"], [folder / "conf"]).cfg
    train, held_out = main_rows(cfg, "preference")
    assert len(train)
    assert {name: len(rows) for name, rows in held_out.items()} == {
        "easy": 2,
        "法": 3,
        "same": 4,
    }
    _, every = main_rows(cfg, "demonstration", ["easy", "算auc的dataset", "法", "same"])
    assert list(every) == ["easy", "算auc的dataset", "法", "same"]
    assert every["算auc的dataset"][0]["completion"] == [turn("assistant", "1 2 3 4")]


def main_rows(cfg, to, names=("easy", "法", "same")):
    """The rows of a configuration, of its held-out sets those with these names."""
    node = dict(cfg["dataset"])
    node["split"] = node["split"] | {"eval": {name: node["split"]["eval"][name] for name in names}}
    return serve(node, to=to, seed=0)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "where", "message"),
    [
        (("dataset.split.eval.path=askd.jsonl",), "dataset.split.eval.path", "asked.jsonl"),
        (
            ("dataset.split.eval.path=asked.jsonl", "trainer=dpo"),
            "dataset.split.eval.columns",
            "chosen with rejected",
        ),
        (
            ("dataset.split.eval={a: {path: asked.jsonl, frm: text}}",),
            "dataset.split.eval.a.frm",
            "form",
        ),
        (
            ("dataset.split.eval={a: {path: asked.jsonl, split: test}}",),
            "split.eval.a.split\n",
            "eval.a.split='train[",
        ),
        (
            ("dataset.split.eval.path=asked.jsonl",),
            "dataset.split.eval.columns",
            "dataset.split.eval.form=null",
        ),
        (
            ("dataset.split.eval=asked.jsonl",),
            "dataset.split.eval",
            "dataset.split.eval.path=asked.jsonl",
        ),
        (("eval_file=asked.jsonl",), "eval_file", "dataset.split.eval.path=asked.jsonl"),
        (
            ("dataset=mixture", "dataset.split.eval.path=a.jsonl"),
            "dataset.split",
            "sort.split.eval.path=a.jsonl",
        ),
        (("dataset.system=brif.md",), "dataset.system", "brief.txt"),
        (
            ("dataset=mixture", "dataset.parts.sort.system=no.txt"),
            "dataset.parts.sort.system",
            "No such file",
        ),
    ],
)
def test_a_slip_is_found_before_anything_loads(folder, capsys, words, where, message):
    assert main([*words, "metric=none", "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert where in err
    assert message in err


def test_a_set_is_asked_for_by_any_name(folder, capsys):
    """The words of a verb are quoted for Hydra; its own options are not."""
    options, _, faults = split_options(expand(["set=法"], {}), options_of("predict"), "predict")
    assert options == {"set": "法"}
    assert not faults


# --- A system prompt in a file ------------------------------------------------------------------


def test_the_text_of_a_prompt_is_in_the_frozen_configuration(folder):
    cfg = compose(["dataset.system=brief.txt", "dataset.split.eval.path=asked.jsonl"]).cfg
    assert (
        cfg["dataset"]["system"] == cfg["dataset"]["split"]["eval"]["system"] == "Be brief, 简短."
    )
    assert (
        compose(["dataset.system='Answer as in notes.txt'"]).cfg["dataset"]["system"]
        == "Answer as in notes.txt"
    )
    # as editors on Windows write it
    (folder / "brief.txt").write_bytes(b"\xef\xbb\xbfBe brief.\r\n")
    assert compose(["dataset.system=brief.txt"]).cfg["dataset"]["system"] == "Be brief."
    for content, problem in ((b"\xff\xfe", "UTF-8"), (b" \n", "no text")):
        (folder / "brief.txt").write_bytes(content)
        with pytest.raises(ConfigError, match=problem):
            compose(["dataset.system=brief.txt"])


# --- Arguments of a row's own -------------------------------------------------------------------


def test_null_arguments_are_not_passed_to_the_template():
    assert read_arguments('{"enable_thinking": false, "style": null}') == {"enable_thinking": False}
    assert read_arguments({"enable_thinking": None, "style": "x"}) == {"style": "x"}
    assert read_arguments(None) == read_arguments("") == {}
    for odd in ("[1]", "{", 3, [{}]):
        with pytest.raises(DataError, match="chat_template_kwargs"):
            read_arguments(odd)


@pytest.mark.parametrize("to", ["demonstration", "preference", "unpaired", "prompt"])
def test_each_row_keeps_the_arguments_that_it_has(folder, to):
    rows, _ = load_rows("pairs.jsonl", to=to, shuffle=False)
    assert isinstance(rows.features["chat_template_kwargs"], Json)
    kwargs_of_rows = {json.dumps(row["chat_template_kwargs"], sort_keys=True) for row in rows}
    assert kwargs_of_rows == {json.dumps(arguments or {}) for arguments in ARGUMENTS}
    write(folder / "bad.jsonl", [*pairs(), *pairs(["what?"])])
    with pytest.raises(DataError, match="row 4, chat_template_kwargs"):
        load_rows("bad.jsonl", to=to, shuffle=False)


def test_parts_of_a_mixture_that_have_none_get_empty_ones(folder):
    write(
        folder / "plain.jsonl",
        [{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in pairs()],
    )
    parts = {name: partial(load_rows, f"{name}.jsonl") for name in ("pairs", "plain")}
    mixed, _ = mix_rows(parts, to="preference")
    kwargs_of_rows = [row["chat_template_kwargs"] for row in mixed]
    assert len(kwargs_of_rows) == 8
    assert kwargs_of_rows.count({}) == 5


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ("sft", ()),
        ("dpo", ()),
        ("kto", ()),
        ("reward", ()),
        ("grpo", ("reward=exact_match", "trainer.args.num_generations=2")),
        ("ppo", ("reward=exact_match",)),
        ("sft", ("weight=answers",)),
    ],
)
def test_arguments_reach_what_is_trained_or_sampled(folder, trainer, words):
    words = [f"trainer={trainer}", *words, "dataset=local", "dataset.path=pairs.jsonl", TEMPLATE]
    cfg = compose([*words, "metric=none", "trainer.args.per_device_train_batch_size=4"]).cfg
    with first_rows_prepared(Experiment.read(cfg), 8) as (components, how):
        inspection = inspect_training(components.trainer, components.train_rows, **how)
    texts = [inspection.tokenizer.decode(row.ids) for row in inspection.rows]
    assert len([text for text in texts if "assistant\nno:" in text]) == len(texts) / 4
    assert len([text for text in texts if " as 5<|im_end|>" in text]) == len(texts) / 4
    for text in texts:
        assert "None" not in text
    assert not inspection.prompt_mismatches


# --- A run of all of it -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_with_all_of_it_resumes_to_the_same_bits_despite_a_changed_prompt_file(
    train, folder, capsys
):
    words = (
        "experiment=sets",
        "--config-dir",
        "conf",
        "dataset.system=brief.txt",
        "optimizer=muon",
        "metric=none",
    )
    words += ("trainer.args.max_steps=4", "trainer.args.save_steps=2", "tolerate.loss=9")
    words += (
        "trainer.args.per_device_train_batch_size=4",
        "dataset.limit.train=40",
        "dataset.limit.eval=3",
    )
    done = train(*words)
    assert (done.code, done.state()) == (0, "finished")
    assert {
        f"eval_{name}_loss" for name in ("easy", "算auc的dataset", "法", "same")
    } <= done.scores["after"].keys()
    weights = (done.run.model / "model.safetensors").read_bytes()
    shutil.rmtree(done.run.model), shutil.rmtree(done.run.checkpoints / "checkpoint-4")
    done.run.set_status("interrupted", step=2, max_steps=4, sealed=2)
    (folder / "brief.txt").write_text("Be long.")
    assert local(done.run.folder) == 0
    assert (done.run.model / "model.safetensors").read_bytes() == weights
    assert main(["evaluate", str(done.run), "set=法", "limit=2"]) == 0
    assert "法" in capsys.readouterr().out


@pytest.mark.slow
def test_a_loss_above_the_tolerated_one_ends_the_run_as_sick(train, capsys):
    done = train(
        "tolerate.loss=0.01", "tolerate.loss_steps=2", "trainer.args.max_steps=6", "metric=none"
    )
    assert done.code == 3
    assert "at most 0.01 is tolerated" in capsys.readouterr().err
    assert "loss at step 2" in done.run.status()["cause"]
