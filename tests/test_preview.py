"""The preview shows what is trained, and a training whose rows cannot teach does not start."""

import json
import re
import shutil
import subprocess
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset
from tiny import tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import DataCollatorForLanguageModeling as Masking
from trl.trainer.dpo_trainer import DataCollatorForPreference as Pairs
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference as Labelled
from trl.trainer.reward_trainer import DataCollatorForPreference as Scored
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as Tokens

from runner.__main__ import main
from runner.command._option import options_of, split_options
from runner.config.experiment import Tolerate
from runner.errors import ConfigError
from runner.io.terminal import sample_lines
from runner.io.visible import to_visible
from runner.launch.compose.stages import compose_runs
from runner.model.encoding import to_texts
from runner.model.jinja import read_template
from runner.report.page import to_preview_page
from runner.report.tokens import Sheet, TokenRow, format_sheet
from runner.run.key import key_of
from runner.training.inspection import inspect_training, read_batches
from runner.training.inspection_faults import find_faults, find_notes, summary_of

GOLDEN = Path(__file__).parent / "golden"
ASKED = {"role": "user", "content": "What did Anna see?"}
ANSWERS = ("A dog.", "A cat at the lake.", "Nobody came by.")
CHATS = [{"messages": [ASKED, {"role": "assistant", "content": answer}]} for answer in ANSWERS]


@pytest.fixture(scope="module")
def chatml():
    """A tokenizer whose template marks the assistant's text."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = read_template("chatml")
    return tokenizer


@pytest.fixture
def tokenizer(chatml):
    """The same for one test, which may break it."""
    return deepcopy(chatml)


def prepared(tokenizer, rows, limit=None, template=None):
    """The rows as TRL prepares them for answers alone.

    Ids, and labels if the template marks the assistant.
    """
    made = []
    for row in rows:
        how = {"return_dict": True, "return_assistant_tokens_mask": True, "chat_template": template}
        spelt = tokenizer.apply_chat_template(row["messages"], **how)
        pairs = zip(spelt["input_ids"], spelt["assistant_masks"], strict=True)
        labels = [token if mask else -100 for token, mask in pairs]
        made.append({"input_ids": spelt["input_ids"][:limit], "labels": labels[:limit]})
    return made


def see(tokenizer, rows, made, collator=None, limit=None, **how):
    """The inspection of a trainer with these rows, prepared this way, in batches of two."""
    collate = collator or Tokens(pad_token_id=tokenizer.pad_token_id)
    trainer = SimpleNamespace(
        args=SimpleNamespace(max_length=limit),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(made),
    )
    batches = (made[start : start + 2] for start in range(0, len(made), 2))
    trainer.get_train_dataloader = lambda: [collate(batch) for batch in batches]
    return inspect_training(
        trainer, Dataset.from_list(rows), **{"form": "demonstration", "head": "lm"} | how
    )


def fault_of(inspection, allowed):
    """The one fault, which names the key that allows it, and disappears if that is allowed."""
    [fault] = find_faults(inspection)
    name, value = allowed
    assert f"tolerate.{name}=" in fault.fix
    assert find_faults(inspection, Tolerate.read({name: value})) == []
    return fault


# --- The refusals -------------------------------------------------------------------------------


def test_sound_rows_have_no_fault(tokenizer):
    inspection = see(tokenizer, CHATS, prepared(tokenizer, CHATS), limit=1024)
    assert find_faults(inspection) == []
    assert len(inspection.ended) == len(CHATS)
    assert not inspection.cut
    assert not inspection.prompt_mismatches
    assert 0 < inspection.trained < sum(len(row.ids) for row in inspection.rows)


def test_fully_trained_conversations_are_noted_unless_weighed(tokenizer):
    made = prepared(tokenizer, CHATS)
    assert find_notes(see(tokenizer, CHATS, made)) == []
    unmasked = [{"input_ids": row["input_ids"]} for row in made]
    inspection = see(tokenizer, CHATS, unmasked)
    [note] = find_notes(inspection)
    assert "every token of 3 conversations is trained" in note
    assert "weight=answers" in note
    assert note in summary_of(inspection)


def test_plain_text_in_which_prompt_and_answer_are_one_word_is_noted(tokenizer):
    for prompt, count in (("1 2", 1), ("1 2 ", 0)):
        notes = find_notes(
            see(tokenizer, [{"prompt": prompt, "completion": "1"}], prepared(tokenizer, CHATS))
        )
        assert len(notes) == count
        for note in notes:
            assert "dataset.columns.target=completion" in note


@pytest.mark.slow
def test_empty_answers_are_noted_before_the_first_step_and_in_the_manifest(train, tmp_path, caplog):
    rows = [
        {"prompt": f"a{n}", "chosen": "good", "rejected": "" if n % 2 else "bad"} for n in range(16)
    ]
    (tmp_path / "half.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = (
        "trainer=dpo",
        "dataset=local",
        f"dataset.path={tmp_path / 'half.jsonl'}",
        "dataset.limit.eval=2",
    )
    trained = train(*words, "trainer.args.max_steps=1")
    [note] = trained.run.manifest()["notes"]
    assert note in caplog.text
    assert " rows have an empty rejected answer" in note


def test_no_trained_token_is_refused(tokenizer):
    made = [row | {"labels": [-100] * len(row["labels"])} for row in prepared(tokenizer, CHATS)]
    fault = fault_of(see(tokenizer, CHATS, made), ("nothing_trained", True))
    assert "no token of 3 texts is trained" in fault.found


def test_a_trainer_that_leaves_out_every_row_is_refused(tokenizer):
    inspection = see(tokenizer, CHATS, [], limit=4)
    told = [
        fault.found
        for fault in find_faults(inspection, Tolerate(truncated=1, nothing_trained=True))
    ]
    assert told == ["no row is left of 3: the trainer leaves out all of them"]


def test_an_end_that_the_collator_hides_with_the_padding_is_refused(tokenizer):
    tokenizer.pad_token = tokenizer.eos_token
    made = [{"input_ids": row["input_ids"]} for row in prepared(tokenizer, CHATS)]
    fault = fault_of(see(tokenizer, CHATS, made, Masking(tokenizer, mlm=False)), ("no_end", True))
    assert fault.fix.startswith("model.tokenizer.pad_token=")


def test_a_mark_that_ends_answers_and_stops_nothing_is_refused(tokenizer):
    made = prepared(tokenizer, CHATS)
    tokenizer.eos_token = "<|endoftext|>"
    fault = fault_of(see(tokenizer, CHATS, made), ("no_end", True))
    assert fault.fix.startswith("model.tokenizer.eos_token='<|im_end|>'")
    assert (
        find_faults(
            see(tokenizer, CHATS, made, ends=[tokenizer.convert_tokens_to_ids("<|im_end|>")])
        )
        == []
    )


def test_an_end_outside_of_the_marks_is_refused(tokenizer):
    end = "{{- message['content'] -}}{%- endgeneration -%}{{- eos_token -}}"
    tokenizer.chat_template = read_template("chatml").replace(
        "{{- message['content'] + eos_token -}}\n{%- endgeneration -%}", end
    )
    fault = fault_of(see(tokenizer, CHATS, prepared(tokenizer, CHATS)), ("no_end", True))
    assert "'." in fault.found or "by." in fault.found or "dog." in fault.found


def with_bos(tokenizer):
    """The tokenizer with a begin token that it sets in front of every text."""
    tokenizer.bos_token = "<|endoftext|>"
    core = tokenizer.backend_tokenizer
    core.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.bos_token_id)]
    )
    return tokenizer


def test_two_begin_tokens_are_refused(tokenizer):
    tokenizer = with_bos(tokenizer)
    rows = [{"text": f"<|endoftext|>{answer}<|im_end|>"} for answer in ANSWERS]
    made = [{"input_ids": tokenizer(row["text"])["input_ids"]} for row in rows]
    fault = fault_of(see(tokenizer, rows, made), ("doubled_bos", True))
    assert fault.found == "3 of 3 rows begin with '<|endoftext|><|endoftext|>'"


def test_one_begin_token_is_none_too_many_wherever_padding_uses_it_too(tokenizer):
    tokenizer = with_bos(tokenizer)
    tokenizer.pad_token = tokenizer.bos_token
    tokenizer.padding_side = "left"
    rows = [{"text": f"{answer}<|im_end|>"} for answer in ANSWERS]
    made = [{"input_ids": tokenizer(row["text"])["input_ids"]} for row in rows]
    assert (
        find_faults(
            see(
                tokenizer,
                rows,
                made,
                lambda batch: labelled(tokenizer.pad(batch, return_tensors="pt")),
            )
        )
        == []
    )


def labelled(batch):
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def test_a_prompt_doubled_by_template_and_tokenizer_is_refused_where_answers_are_sampled(tokenizer):
    tokenizer = with_bos(tokenizer)
    rows = [{"prompt": f"<|endoftext|>{answer}"} for answer in ANSWERS]
    fault = fault_of(see(tokenizer, rows, rows, form="prompt"), ("doubled_bos", True))
    assert fault.where == "model.tokenizer"


@pytest.mark.parametrize(("cut", "refused"), [(1, False), (2, True)])
def test_more_cut_rows_than_a_tenth_are_refused(tokenizer, cut, refused):
    long = {"messages": [ASKED, {"role": "assistant", "content": "A dog. " * 40}]}
    rows = CHATS * 6 + [long] * cut
    inspection = see(tokenizer, rows, prepared(tokenizer, rows, 100), limit=100)
    assert (len(inspection.cut), [row.whole > 100 for row in inspection.rows][-cut:]) == (
        cut,
        [True] * cut,
    )
    if refused:
        rows += [long]
        inspection = see(tokenizer, rows, prepared(tokenizer, rows, 100), limit=100)
        fault = fault_of(inspection, ("truncated", 0.15))
        assert fault.found.startswith("100: 14% of 21 rows")
        assert fault.expected == "at most 10% of the rows"
        assert (
            fault.fix
            == f"trainer.args.max_length={inspection.cut[0].length}, or tolerate.truncated=0.15"
        )
    else:
        assert find_faults(inspection) == []


def test_a_row_as_long_as_the_limit_is_whole(tokenizer):
    made = prepared(tokenizer, CHATS)
    longest = max(len(row["input_ids"]) for row in made)
    inspection = see(tokenizer, CHATS, made, limit=longest)
    assert find_faults(inspection) == []
    for row in inspection.rows:
        assert not row.whole


def test_answers_that_generation_opens_differently_are_refused(tokenizer):
    opened = read_template("chatml").replace(
        "assistant\\n' -}}\n{%- endif", "assistant\\n<think>\\n' -}}\n{%- endif"
    )
    tokenizer.chat_template = opened
    fault = fault_of(see(tokenizer, CHATS, prepared(tokenizer, CHATS)), ("other_template", True))
    assert "3 of 3 answers" in fault.found
    assert "generation with '<think>" in fault.found


def test_a_training_template_of_another_text_is_refused(tokenizer):
    made = prepared(tokenizer, CHATS, template=read_template("plain"))
    fault = fault_of(see(tokenizer, CHATS, made), ("other_template", True))
    assert "the rows continue with 'User:" in fault.found


def test_a_reward_model_needs_neither_end_nor_prompt(tokenizer):
    rows = [
        {
            "prompt": [ASKED],
            "chosen": [CHATS[0]["messages"][1]],
            "rejected": [CHATS[1]["messages"][1]],
        }
    ]
    made = [{"chosen_ids": [5, 6, 7], "rejected_ids": [5, 8]}]
    inspection = see(tokenizer, rows, made, Scored(pad_token_id=0), form="preference", head="score")
    assert find_faults(inspection) == []
    assert [row.trained for row in inspection.rows] == [
        [False, False, True],
        [False, True],
    ]


def test_the_rows_and_the_random_numbers_of_a_training_stay_as_they_were(tokenizer):
    import random

    import torch

    before = torch.get_rng_state(), random.getstate()
    made = prepared(tokenizer, CHATS)
    trainer = SimpleNamespace(
        args=SimpleNamespace(), processing_class=tokenizer, train_dataset=Dataset.from_list(made)
    )
    rows_before = trainer.train_dataset

    def load():
        torch.rand(3), random.random()
        assert len(trainer.train_dataset) == 2
        return [Tokens(pad_token_id=0)(made[:2])]

    trainer.get_train_dataloader = load
    inspect_training(trainer, Dataset.from_list(CHATS), form="demonstration", head="lm", count=2)
    assert trainer.train_dataset is rows_before
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize(
    ("word", "where"),
    [
        ("tolerate.truncated=2", "tolerate.truncated"),
        ("tolerate.no_ned=true", "tolerate.no_ned"),
        ("tolerate.no_end=1", "tolerate.no_end"),
        ("tolerate=all", "tolerate"),
    ],
)
def test_only_what_can_be_found_can_be_tolerated(word, where):
    with pytest.raises(ConfigError) as caught:
        compose_runs([word])
    assert [fault.where for fault in caught.value.faults] == [where]


def test_tolerated_faults_are_in_the_config_but_not_in_the_key():
    [plain], [allowed] = (compose_runs(words) for words in ([], ["tolerate.no_end=true"]))
    assert "tolerate" not in plain.cfg
    assert allowed.cfg["tolerate"] == {"no_end": True}
    assert key_of(plain.cfg) == key_of(allowed.cfg)


# --- Batches as collators make them -------------------------------------------------------------


def short(rows):
    return [(row.number, row.role, row.ids, [int(bit) for bit in row.trained]) for row in rows]


def test_pairs_are_shown_side_by_side_in_any_batch_layout():
    pair = {"prompt_ids": [1, 2], "chosen_ids": [3, 4, 5], "rejected_ids": [6]}
    other_pair = {"prompt_ids": [7], "chosen_ids": [8], "rejected_ids": [9]}
    wanted = [
        (0, "chosen", [1, 2, 3, 4, 5], [0, 0, 1, 1, 1]),
        (0, "rejected", [1, 2, 6], [0, 0, 1]),
        (1, "chosen", [7, 8], [0, 1]),
        (1, "rejected", [7, 9], [0, 1]),
    ]
    batch = Pairs(pad_token_id=0)([pair, other_pair])
    assert short(read_batches([batch], "preference", "lm")) == wanted
    apart = {}
    for side, rows in (("chosen", (0, 1)), ("rejected", (2, 3))):
        mask = batch["completion_mask"][list(rows)].bool()
        ids = batch["input_ids"][list(rows)]
        apart |= {f"{side}_input_ids": ids, f"{side}_labels": ids.masked_fill(~mask, -100)}
        apart |= {f"{side}_attention_mask": batch["attention_mask"][list(rows)]}
    assert short(read_batches([apart], "preference", "lm")) == wanted


def test_labelled_answers_say_whether_they_are_good_and_count_through_the_batches():
    row = {"prompt_ids": [1], "completion_ids": [2], "label": True}
    collate = Labelled(pad_token_id=0)
    batches = read_batches(
        [collate([row, row | {"label": False}]), collate([row])], "unpaired", "lm"
    )
    assert [(row.number, row.role) for row in batches] == [(0, "good"), (1, "bad"), (2, "good")]


def test_packed_texts_are_taken_apart_where_their_positions_begin_anew():
    rows = [{"input_ids": [1, 2, 3, 4, 5], "labels": [1, 2, 3, 4, 5], "seq_lengths": [3, 2]}]
    batch = Tokens(pad_token_id=0, padding_free=True)(rows)
    batches = short(read_batches([batch], "demonstration", "lm"))
    assert [(ids, trained) for _, _, ids, trained in batches] == [
        ([1, 2, 3], [0, 1, 1]),
        ([4, 5], [0, 1]),
    ]


def test_weights_of_tokens_come_along():
    import torch

    batch = Tokens(pad_token_id=0)([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}])
    batch["token_weights"] = torch.tensor([[0.0, 1.0, 2.5], [0.5, 1.0, 0.0]])
    batches = read_batches([batch], "demonstration", "lm")
    assert [row.weights for row in batches] == [[0.0, 1.0, 2.5], [0.5, 1.0]]


@pytest.mark.parametrize("text", ["Ann saw 把数字 and 🦊🦊!", "  two  spaces\n\nlines\t", "é́ ̈ x"])
def test_the_texts_of_tokens_make_up_the_text(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    texts = to_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == text
    assert "\ufffd" not in "".join(texts)


# --- What is shown ------------------------------------------------------------------------------


def row_of(texts, trained, role="", number=0, weights=None):
    ids = list(range(len(texts)))
    return TokenRow(number, role, ids, [bool(bit) for bit in trained], weights, 0, texts)


def test_marks_stand_below_the_tokens_that_they_are_of():
    row = row_of(
        ["Ask", ":\n", "一", "b", "c", "d", "\n"],
        [0, 0, 1, 1, 1, 1, 1],
        weights=[1, 1, 1, 2, 0.5, 0, 1],
    )
    text = format_sheet(Sheet("train", ["one line"], [row]))
    assert text == (
        "train\n  one line\n  marks: ^ trained, + weighs more than 1, - less than 1, 0 nothing\n\n"
        "row 1: 5 of 7 tokens trained (71%), weights 0 to 2\n  Ask:↵\n  一bcd↵\n  ^^+-0^\n"
    )


def test_blank_lines_of_a_text_stay():
    text = format_sheet(Sheet("train", [], [row_of(["a\n", "\n\n", "b\n"], [0, 0, 1])]))
    assert [line.strip() for line in text.splitlines()[4:]] == ["a↵", "↵", "↵", "b↵", "^^"]


def test_the_two_of_a_pair_share_their_prompt():
    pair = [
        row_of(["p", "q", "a"], [0, 0, 1], "chosen"),
        row_of(["p", "q", "b"], [0, 0, 1], "rejected"),
    ]
    text = format_sheet(Sheet("train", [], pair))
    assert (
        "row 1: 2 tokens are shared\n  pq\n\n"
        "chosen: 1 of 3 tokens trained (33%)\n  a\n  ^\n\nrejected"
    ) in text


def test_lines_fit_the_width_and_long_stretches_lose_their_middle():
    row = row_of(["字" * 900, "word " * 30], [0, 1])
    lines = format_sheet(Sheet("train", [], [row])).splitlines()
    widths = [sum(2 if ord(character) > 0x2E80 else 1 for character in line) for line in lines]
    assert max(widths) <= 80
    assert any("[... 100 characters ...]" in line for line in lines)


def test_colours_take_the_place_of_marks():
    row = row_of(["a", "b"], [0, 1])
    text = format_sheet(Sheet("train", [], [row]), colour=True)
    assert "\x1b[2ma\x1b[0m\x1b[32;4mb\x1b[0m" in text
    assert "^" not in text


HOSTILE = "\x1b[2Jgone\x07\u202e<script>alert(1)</script>&\r\x9b1m"


def test_no_text_of_others_steers_the_terminal():
    shown = to_visible(HOSTILE)
    assert shown == "␛[2Jgone␇·<script>alert(1)</script>&␍·1m"
    assert "\x1b" not in format_sheet(Sheet("train", [], [row_of([HOSTILE], [1])]))
    assert "\x1b" not in "".join(
        sample_lines([(HOSTILE, HOSTILE), ([{"content": HOSTILE}], HOSTILE)])
    )


class Reader(HTMLParser):
    """Collects the parts of a page."""

    def __init__(self):
        super().__init__()
        self.tags = []
        self.links = []
        self.text = ""

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [
            value for name, value in attributes if name in ("src", "href", "action", "data")
        ]

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_by_itself_and_no_text_of_others_is_part_of_it():
    pair = [row_of(["p", HOSTILE], [0, 1], "chosen"), row_of(["p", "b"], [0, 1], "rejected")]
    page = to_preview_page("<b>name", [Sheet("train", ["x < y"], pair)])
    reader = Reader()
    reader.feed(page)
    assert "script" not in reader.tags
    assert reader.links == []
    assert "url(" not in page
    assert "http:" not in page
    assert "<script>alert(1)</script>" in reader.text
    assert "x < y" in reader.text
    assert "<b>name" in reader.text


def test_words_of_the_preview_and_of_the_training_are_separated():
    own_options = options_of("preview")
    options, words, faults = split_options(
        ["rows=5", "seed=1", "html=a.html", "set=all"], own_options, "preview"
    )
    assert (options, words, faults) == ({"rows": 5, "html": "a.html", "set": "all"}, ["seed=1"], [])
    *_, faults = split_options(["rows=none", "set=test"], own_options, "preview")
    assert [fault.where for fault in faults] == ["rows", "set"]


# --- The whole command --------------------------------------------------------------------------


@pytest.mark.grid(4)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["sft", "dpo", "kto", "grpo", "reward", "orpo", "ppo"])
def test_the_preview_of_the_toy_rows_equals_the_golden_file(runner, trainer, request):
    done = runner("preview", f"trainer={trainer}", "rows=2", "set=all")
    assert not (runner.folder / "outputs").exists()
    path = GOLDEN / f"preview_{trainer}.txt"
    if request.config.getoption("--golden"):
        path.write_text(done.stdout, encoding="utf-8")
    assert done.stdout == path.read_text(encoding="utf-8")
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.slow
def test_a_staged_experiment_shows_its_stages_and_a_run_folder_shows_its_run(runner):
    done = runner("preview", "experiment=toy_rlhf", "rows=1", "html=true")
    heads = [line for line in done.stdout.splitlines() if line.endswith(" train")]
    assert heads == ["sft train", "reward_model train", "ppo train"]
    [page] = (runner.folder / "outputs").rglob("*.html")
    title = "What toy-rlhf trains on: sft, reward_model, ppo"
    assert done.stdout.startswith(f"{title}\n")
    assert f"<h1>{title}</h1>" in page.read_text()
    assert re.fullmatch(r"preview-[0-9a-f]{10}\.html", page.name)
    assert not list((runner.folder / "outputs").rglob("config.yaml"))
    runner(
        "trainer.args.max_steps=1",
        "dataset.limit.train=64",
        "metric=none",
        "dataset.limit.eval=8",
        "name=one",
    )
    [folder] = runner.runs("one")
    assert "64 rows looked at" in runner("preview", str(folder), "rows=1").stdout


@pytest.mark.slow
def test_a_training_is_refused_for_what_the_preview_shows_and_starts_where_that_is_allowed(
    train, capfd
):
    words = (
        "trainer.args.max_length=20",
        "trainer.args.max_steps=1",
        "dataset.limit.train=64",
        "metric=none",
    )
    refused = train(*words, "dataset.limit.eval=8")
    assert (refused.code, refused.state()) == (2, "failed")
    assert "tolerate.truncated=1" in capfd.readouterr().err
    allowed = train(*words, "dataset.limit.eval=8", "tolerate.truncated=1", name="allowed")
    assert (allowed.code, allowed.state()) == (0, "finished")
    assert allowed.run.cfg["tolerate"] == {"truncated": 1}


@pytest.mark.slow
def test_several_processes_see_their_rows_together_and_the_first_tells(runner):
    words = (
        "trainer.args.max_length=20",
        "trainer.args.max_steps=1",
        "metric=none",
        "dataset.limit.train=32",
    )
    first, second = [started.wait() for started in runner.start_two(*words, "dataset.limit.eval=8")]
    assert first.returncode == 2
    assert second.returncode != 0
    assert first.stderr.count("100% of 32 rows are longer") == 1
    assert not second.stderr


@pytest.mark.slow
def test_the_preview_refuses_as_the_training_does(runner):
    done = runner("preview", "trainer.args.max_length=20", "rows=1", "html=page.html", code=2)
    assert "cut from 22" in done.stdout
    assert "tolerate.truncated=1" in done.stderr
    assert "tolerate.truncated=1" in (runner.folder / "page.html").read_text()
    assert "rows=3" in runner("preview", "--help").stdout


HARNESS = """<!doctype html><body>
<iframe src="page.html" style="width:{width}px;height:800px;border:0"></iframe><script>
onload = () => {{ const page = document.querySelector("iframe").contentDocument.documentElement;
document.body.dataset.found = page.scrollWidth + " of " + page.clientWidth }}</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_of_the_page_runs_off_a_phone(tmp_path, width):
    rows = [
        row_of(["prompt\n", "x" * 300, "word " * 80], [0, 1, 1], role, 0)
        for role in ("chosen", "rejected")
    ]
    rows += [row_of(["https://example.org/" + "y" * 200], [1], "", 1)]
    (tmp_path / "page.html").write_text(
        to_preview_page("A name_" + "n" * 90, [Sheet("train", ["s" * 120], rows)])
    )
    (tmp_path / "harness.html").write_text(HARNESS.format(width=width))
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
    ]
    command += [f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"file://{tmp_path}/harness.html"], capture_output=True, text=True, timeout=120
    )
    match = re.search(r'data-found="(\d+) of (\d+)"', done.stdout)
    assert match and width - 20 <= int(match[2]) <= width  # except for a scroll bar
    assert int(match[1]) <= int(match[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "shown"), [("{}/file/page.html", "{}/file: File exists"), ("{}", "{}: Is a dir")]
)
def test_a_page_that_cannot_be_written_names_what_was_typed(tmp_path, capsys, place, shown):
    (tmp_path / "file").touch()
    assert main(["preview", "rows=1", f"html={place.format(tmp_path)}"]) == 5
    stderr = capsys.readouterr().err
    assert "\n  html\n" in stderr
    assert f"found     {shown.format(tmp_path)}" in stderr
    assert "html=<another place>" in stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
