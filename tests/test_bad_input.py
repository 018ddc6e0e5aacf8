"""Bad input ends at the door, and odd but good input passes it.

A part of ``tests/fault/bad_input.py``.

The cases are tried by the script itself, in a process that has imported nothing heavy, as a shell
would start it.
"""

import json
import math
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from bad_input_cases import BAD, GOOD, KINDS
from fixes import Told, read_ways

from runner.config.override import quote_text
from runner.dataset.mark import Marks
from runner.io.files import hub_home
from runner.model.check import find_model_faults
from runner.model.jinja import find_template_faults
from runner.schema.modality import IMAGE
from runner.validate.versions import find_other_versions, is_within

SCRIPT, FIXES = (Path(__file__).parent / "fault" / name for name in ("bad_input.py", "fixes.py"))
NULL = [case for case in BAD if case.kind == "dataset" and "line null" in case.name]
EARLY = [case for case in BAD if not case.late and not case.skip and case not in NULL]
LATE = [case for case in BAD if case.late and not case.skip]
ODD = [case for case in GOOD if not case.skip]


def try_out(cases, warm):
    """Let the script try these cases; fail if one of them misses."""
    names = [f"{case.kind} {case.name}" for case in cases]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *names], capture_output=True, text=True, **warm.lend()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok") >= len(cases) - 1


def test_there_are_as_many_cases_as_promised():
    assert len(BAD) >= 100
    for cases in KINDS.values():
        assert cases
    assert len(GOOD) >= 30
    assert len({(case.kind, case.name) for case in [*BAD, *GOOD]}) == len(BAD) + len(GOOD)


@pytest.mark.dear("eleven commands, of which two load a model")
@pytest.mark.slow
def test_bad_rows_of_every_kind_are_refused_and_good_rows_train(warm):
    try_out([*NULL, *EARLY[::160], *LATE[::24], *ODD[::76]], warm)


@pytest.mark.dear("three commands, and what each of them tells to type")
@pytest.mark.slow
def test_printed_fixes_work_when_typed(warm):
    kinds = ("list for a number", "UTF-16", "that may not run")  # a command, a shell's, words
    done = subprocess.run(
        [sys.executable, str(FIXES), *kinds], capture_output=True, text=True, **warm.lend()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= len(kinds)


def test_ways_to_mend_a_fault_are_read_as_a_shell_reads_them():
    def ways(fix, *words):
        return [
            (way.kind, way.words, way.wrong) for way in read_ways(Told("a.b", "it", fix), words)
        ]

    assert ways("a.b=1  (the default), or leave b out", "c=2", "a.b=0") == [
        ("words", ("c=2", "a.b=1"), ""),
        ("words", ("c=2",), ""),
    ]
    assert ways("python -m runner -m <the same words>, or 'a.b=[1,2]'", "a.b=1,2") == [
        ("command", ("-m", "a.b=1,2"), ""),
        ("words", ("a.b=[1,2]",), ""),
    ]
    assert ways("allow=[mine]") == [("words", ("allow=[mine]",), "[]")]
    assert ways("mv a b.csv, then a.b=b.csv", "a.b=a") == [("shell", ("a.b=b.csv",), "")]
    assert [kind for kind, *_ in ways("a.b=<value>, or mend it; pip install x")] == [
        "placeholder",
        "sentence",
        "elsewhere",
    ]


def test_an_installed_library_is_judged_by_its_release():
    assert list(find_other_versions()) == []
    installed = (
        "2.13.0+cpu",
        "2.9",
        "2.9.0a0+145a3a7bda.nv25.10",
        "2.13.1.post1",
        "2.9.0rc1",
        "unheard",
        None,
    )
    assert [version for version in installed if not is_within(version, ">=2.9.0,<2.14")] == []
    too_new = ("2.8.9", "2.14", "2.14.0.dev20260101+cu130", "3.0")
    assert [version for version in too_new if is_within(version, ">=2.9.0,<2.14")] == []


@pytest.mark.parametrize(
    "name", ["дані.jsonl", "rows (1).jsonl", "rows[1].jsonl", "a b (ü) [2].csv"]
)
def test_a_name_of_a_file_is_text(name):
    assert quote_text(f"dataset.path={name}") == f"dataset.path='{name}'"


@pytest.mark.parametrize(
    "word", ["a=[x]", "a={b:c}", "a=range(3)", "a=choice(1,2)", "a=${b}", "a='ü'", "a=1)", "~a"]
)
def test_a_name_must_not_be_hydra_syntax(word):
    assert quote_text(word) == word


def test_a_blank_beyond_ascii_in_a_list_is_text():
    assert quote_text("allow=[a,\u00a0b]") == "allow=[a,'\u00a0b']"


@pytest.mark.parametrize("bad", [None, "text"])
def test_values_that_are_no_turns_are_left_to_the_conversion(bad):
    row = {"messages": [{"role": "user", "content": "hi"}, bad], "images": ["a.png"]}
    assert not IMAGE.is_in({"messages": row["messages"]})
    marks = Marks(row, {IMAGE: ("images",)})
    marked = marks.mark(row, {"messages": "messages"})
    assert marked["messages"][-1] == bad


@pytest.mark.parametrize(
    "text", ["{{ messages + 1 }}", "{{ 1 // 0 }}", "{{ messages[7].content.upper() }}"]
)
def test_a_template_that_fails_is_a_fault_however_it_fails(text):
    (fault,) = find_template_faults(text, "my.jinja", None, {}, chosen=True)
    assert "my.jinja" in fault.found


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "{{ 9**(9**9) }}",
        "{{ 'a' * 10**7 }}",
        "{% for one in range(99999) %}{% for two in range(99999) %}xxxx{% endfor %}{% endfor %}",
        (
            "{% set all = namespace(text='x') %}{% for one in range(99) %}"
            "{% set all.text = all.text * 9 %}{% endfor %}"
        ),
        "{% macro deep(n) %}{{ deep(n + 1) }}{{ deep(n + 1) }}{% endmacro %}{{ deep(0) }}",
        "{{ '%0999999999999d' % 1 }}",
        "{% if messages|length > 99 %}{{ 1 / 0 }}{{ ('a' * 10**10)|length }}{% endif %}",
        "{% if messages|length > 99 %}{{ 'a'|center(10**10) }}{% endif %}",
    ],
)
def test_a_growing_template_is_refused_at_little_cost(text):
    before = getrusage(RUSAGE_CHILDREN).ru_utime
    (fault,) = find_template_faults(
        text + "{{ messages[1].content }}", "my.jinja", None, {}, chosen=True
    )
    assert "my.jinja" in fault.found
    assert fault.fix.endswith("=chatml")
    assert getrusage(RUSAGE_CHILDREN).ru_utime - before < 10


STREAMED = (
    "dataset.streaming=true",
    "dataset.shuffle=false",
    "trainer.args.per_device_train_batch_size=4",
)


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [(), STREAMED, (*STREAMED, "trainer.args.dataloader_num_workers=1")]
)
@pytest.mark.parametrize(
    "loop",
    [
        "{% for a in n %}{% for b in n %}x{% endfor %}{% endfor %}",
        "{{ (turn.content * 10**10)|length }}",
    ],
)
def test_a_template_that_grows_for_a_later_row_alone_is_refused(train, tmp_path, capsys, loop, how):
    text = (
        "{% for turn in messages %}{{ turn.content }}{{ eos_token }}"
        "{% if 'grow' in turn.content %}LOOP{% endif %}"
    )
    loop = "{% set n = range(99999) %}" + loop
    (tmp_path / "my.jinja").write_text(text.replace("LOOP", loop) + "{% endfor %}")
    rows = [
        [{"role": "user", "content": "1"}, {"role": "assistant", "content": f"{n}"}]
        for n in range(150)
    ]
    rows[140][0]["content"] = "grow"
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"messages": row}) + "\n" for row in rows)
    )
    words = ["dataset=local", f"dataset.path={tmp_path}/rows.jsonl", "dataset.split.eval=null"]
    words += [f"model.tokenizer.chat_template={tmp_path}/my.jinja"]
    assert (
        train("trainer=sft", *words, *how, f"trainer.args.max_steps={40 if how else 1}").code == 2
    )
    stderr = capsys.readouterr().err
    assert "\n  model.tokenizer.chat_template\n" in stderr
    assert "content:grow" in stderr
    assert "more than 2 s, 256 MB or 1,000,000 letters for the row" in stderr


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "name", ["qwen3", "llama3_1", "gptoss", "gemma4", "deepseekv3", "nemotron_3_nano"]
)
def test_the_longest_templates_of_real_models_render(name):
    text = (Path(find_spec("trl").origin).parent / "chat_templates" / f"{name}.jinja").read_text()
    assert (
        find_template_faults(
            text, name, None, {"bos_token": "<s>", "eos_token": "</s>"}, chosen=False
        )
        == []
    )


def save(folder, config, shapes):
    """A model's folder with weights of these shapes, in bytes that are all zero."""
    end = 0
    header = {}
    for name, shape in shapes.items():
        start = end
        end = end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    (folder / "config.json").write_text(json.dumps(config))
    return {"_target_": "runner.model.load.load_model", "path": str(folder)}


def layers(prefix, count, part="mlp.up_proj.weight"):
    return {f"{prefix}layers.{number}.{part}": [8, 4] for number in range(count)}


@pytest.mark.parametrize(
    ("file", "content", "finding"),
    [
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("config.json", {"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ("config.json", {"num_attention_heads": 0}, "num_attention_heads is 0"),
        ("generation_config.json", "[" * 5000, "no JSON"),
        ("model.safetensors.index.json", {"weight_map": ["a"]}, "no weight_map"),
        ("model.safetensors.index.json", {"weight_map": {"a": 3}}, "no weight_map"),
    ],
)
def test_a_file_of_a_model_that_says_what_cannot_be_is_a_fault_at_once(
    tmp_path, file, content, finding
):
    node = save(tmp_path, LLAMA | (content if file == "config.json" else {}), BODY)
    if "index" in file:
        (tmp_path / "model.safetensors").unlink()
    if file != "config.json":
        (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    (fault,) = find_model_faults(node, "lm")
    assert finding in fault.found
    assert fault.fix


LLAMA = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
}
SIZES = {"vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2}
BODY = {"model.embed_tokens.weight": [10, 4], **layers("model.", 2)}


@pytest.mark.parametrize(
    ("config", "shapes"),
    [
        (LLAMA, BODY),
        (LLAMA, {name.removeprefix("model."): shape for name, shape in BODY.items()}),
        # Embeddings narrower than the model, as in opt-350m.
        (
            {"model_type": "opt", "word_embed_proj_dim": 2, **SIZES},
            {
                "model.decoder.embed_tokens.weight": [10, 2],
                **layers("model.decoder.", 2, "fc1.weight"),
            },
        ),
        # A model of pictures and text: either part has layers, not as many.
        (
            {"model_type": "gemma3", "text_config": LLAMA | {"num_hidden_layers": 3}},
            {**layers("vision_tower.", 2, "norm.weight"), **layers("language_model.model.", 3)},
        ),
        # Quantised weights have other shapes, and parts beside them.
        (
            LLAMA | {"quantization_config": {"quant_method": "gptq"}},
            {"model.layers.0.mlp.up_proj.weight": [16, 1], "model.layers.0.mlp.up_proj.scale": [1]},
        ),
    ],
    ids=["whole", "without a head", "narrow embeddings", "two kinds of input", "quantised"],
)
def test_a_good_model_raises_no_alarm(tmp_path, config, shapes):
    name = "up_proj" if config is LLAMA else "fc1"
    node = save(tmp_path, config, shapes)
    for targets in ([name], f".*{name}", "all-linear"):
        assert find_model_faults(node, "lm", 64, {"target_modules": targets, "layers": 2}) == []


def test_the_layer_of_an_adapter_as_a_text_is_a_pattern(tmp_path):
    (fault,) = find_model_faults(
        save(tmp_path, LLAMA, BODY), "lm", 64, {"target_modules": "up_proj"}
    )
    assert fault.fix == "peft.target_modules=[up_proj]"


def test_a_model_that_lacks_layers_raises_one(tmp_path):
    (fault,) = find_model_faults(save(tmp_path, LLAMA | {"num_hidden_layers": 3}, BODY), "lm")
    assert "lacks 1 weights" in fault.found


def test_weights_that_are_cut_off_raise_one(tmp_path):
    node = save(tmp_path, LLAMA, BODY)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    (fault,) = find_model_faults(node, "lm")
    assert fault.where == str(file)
    assert "the weights are truncated" in fault.found


@pytest.mark.parametrize(
    ("variables", "home"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/y"}, "/y"),
    ],
)
def test_the_cache_is_where_the_hub_keeps_it(monkeypatch, variables, home):
    monkeypatch.delenv("HF_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub_home() == Path(home)
