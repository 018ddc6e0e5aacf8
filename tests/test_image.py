"""Rows with images.

Every form is read, every bad one is named by its row, and five trainers learn from them.
"""

import base64
import copy
import io
import json
import math
import re
import shutil
import struct
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import datasets
import pytest
import torch
from datasets import Dataset, Features, List, Value
from datasets import Image as Stored
from PIL import Image
from safetensors.torch import load_file
from toy import join_png
from transformers import AutoModelForImageTextToText, AutoProcessor, LlavaProcessor

from runner.__main__ import main
from runner.config.build import serve
from runner.config.composition import compose
from runner.config.experiment import Experiment, TrainerPart
from runner.config.menu import read_options
from runner.dataset import media_source
from runner.dataset.convert import RowRequest
from runner.dataset.dataset_check import LOADER, check_dataset
from runner.dataset.load import load_rows
from runner.dataset.loaded_rows import fingerprint
from runner.dataset.media_faults import find_media_faults
from runner.errors import ConfigError, DataError
from runner.estimate.model_weights import ModelWeights, source_of
from runner.generate.answer_reader import AnswerReader
from runner.generate.completion import TextGenerator
from runner.generate.sampler import Sampling
from runner.io.files import files_of, shipped
from runner.model.encoding import encode_prompt
from runner.model.load import load_tokenizer, new_model
from runner.schema import modality
from runner.schema.modality import IMAGE
from runner.training.components.chat_rows import check_bounds

RED = (220, 40, 40)
BLUE = (40, 60, 220)
ASKED = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
ANSWERED = [{"role": "assistant", "content": "red"}]
HEARD = [
    {"role": "user", "content": [{"type": "image", "image": "red.png"}, {"type": "input_audio"}]},
    *ANSWERED,
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


@pytest.fixture
def folder(tmp_path):
    """A folder with two sound images, and whatever a test writes beside them."""
    (tmp_path / "data").mkdir()
    for name, colour in (("red.png", RED), ("blue.png", BLUE)):
        Image.new("RGB", (16, 12), colour).save(tmp_path / "data" / name)
    return tmp_path / "data"


def packed(colour=RED, kind="PNG"):
    Image.new("RGB", (4, 4), colour).save(written := io.BytesIO(), kind)
    return written.getvalue()


def write(folder, *rows, name="rows.jsonl"):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


def row(**columns):
    return {"question": "What is it?", "answer": "red"} | columns


def read(path, to="demonstration", **how):
    return load_rows(str(path), to=to, shuffle=False, **how)[0]


def refused(path, **how):
    with pytest.raises(DataError) as caught:
        read(path, **how)
    return caught.value.faults


def faults(path, **how):
    """The faults of loading, which equal those of the check before torch."""
    checked = check_dataset(
        {"_target_": LOADER, "path": str(path), "split": {"train": "train"}, **how}, "demonstration"
    )
    faults_of_rows = refused(path, **how)
    assert [fault.found for fault in checked.faults] == [fault.found for fault in faults_of_rows]
    return faults_of_rows


# --- Forms ----------------------------------------------------------------------------------------


def test_a_path_base64_and_an_address_of_data_are_images(folder):
    text = base64.b64encode(packed()).decode()
    rows = read(
        write(
            folder,
            *(row(image=image) for image in ("red.png", text, f"data:image/png;base64,{text}")),
        )
    )
    assert [row["images"][0].size for row in rows] == [(16, 12), (4, 4), (4, 4)]
    small = base64.b64encode(packed(kind="JPEG")).decode()  # "/9j/...", which is no path of a root
    lines = base64.encodebytes(packed()).decode()
    small_rows = read(
        write(
            folder, *(row(image=image) for image in (small, lines, f"DATA:image/png;base64,{text}"))
        )
    )
    assert len(small) < 1024
    assert [row["images"][0].size for row in small_rows] == [(4, 4)] * 3
    assert rows[0]["prompt"] == [{"role": "user", "content": ASKED}]
    assert rows[0]["completion"] == [
        {"role": "assistant", "content": [{"type": "text", "text": "red"}]}
    ]
    assert all(row["images"][0].getpixel((0, 0)) == RED for row in rows)


def test_images_stand_where_the_texts_have_a_place_for_them(folder):
    chat = [
        {"role": "user", "content": "One <image> and <image>?"},
        {"role": "assistant", "content": "no"},
    ]
    (made,) = read(write(folder, {"messages": chat, "images": ["red.png", "blue.png"]}))
    kinds = [part.get("text", "-") for part in made["messages"][0]["content"]]
    assert kinds == ["One ", "-", " and ", "-", "?"]
    assert [image.getpixel((0, 0)) for image in made["images"]] == [RED, BLUE]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "red.png"},
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{base64.b64encode(packed()).decode()}"},
        },
        {"type": "image", "path": "red.png"},
    ],
)
def test_turns_may_hold_their_images(folder, part):
    asked = {"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}
    rows = [{"messages": [asked, {"role": "assistant", "content": "red"}]}] * 2
    (made, _) = read(write(folder, *rows))
    assert made["messages"][0]["content"] == ASKED
    assert made["images"][0].getpixel((0, 0)) == RED


def test_a_pair_with_the_same_question_on_both_sides_has_its_image_once(folder):
    sides = {
        name: [{"role": "user", "content": "<image>What is it?"}] for name in ("chosen", "rejected")
    }
    pair = {name: [*turns, {"role": "assistant", "content": name}] for name, turns in sides.items()}
    (made,) = read(write(folder, pair | {"image": "red.png"}), "preference")
    assert made["prompt"] == [{"role": "user", "content": ASKED}]
    assert len(made["images"]) == 1
    texts = {"prompt": "What is it?", "chosen": "red", "rejected": "blue", "image": "red.png"}
    (plain,) = read(write(folder, texts), "preference")
    assert plain["prompt"] == made["prompt"]
    assert plain["rejected"][0]["content"][0]["text"] == "blue"


@pytest.mark.parametrize("to", ["unpaired", "prompt", "messages", "answer"])
def test_every_form_keeps_the_images(folder, to):
    texts = {"prompt": "What is it?", "completion": "red", "label": True}
    (made, *_) = read(write(folder, texts | {"image": "red.png"}), to)
    assert made["images"][0].getpixel((0, 0)) == RED


def test_bytes_and_the_image_type_of_datasets_are_read_under_any_name(folder, tmp_path):
    kinds = Features({"photo": Stored(), "question": Value("string"), "answer": Value("string")})
    rows = Dataset.from_list(
        [row(photo={"bytes": packed(kind="JPEG"), "path": None})], features=kinds
    )
    rows.to_parquet(tmp_path / "rows.parquet")
    (made,) = read(tmp_path / "rows.parquet", columns={"images": "photo"})
    assert made["images"][0].size == (4, 4)
    assert made["images"][0].mode == "RGB"
    (fault,) = refused(tmp_path / "rows.parquet")
    assert fault.fix == "dataset.columns.images=photo, or dataset.without=[photo]"
    many = Features(
        {"images": List(Stored()), "question": Value("string"), "answer": Value("string")}
    )
    Dataset.from_list([row(images=[packed(), packed(BLUE)])], features=many).to_parquet(
        tmp_path / "many.parquet"
    )
    (made,) = read(tmp_path / "many.parquet")
    assert len(made["images"]) == 2


def test_a_step_may_make_images_of_pillow(folder):
    def draw(row):
        return row | {"images": [Image.new("L", (5, 5), 7)]}

    (made,) = read(write(folder, row()), map=draw)
    assert made["images"][0].size == (5, 5)
    assert made["images"][0].getpixel((0, 0)) == (7, 7, 7)

    def cut(row):
        Image.effect_noise((64, 64), 99).save(written := io.BytesIO(), "PNG")
        return row | {"images": [Image.open(io.BytesIO(written.getvalue()[:2000]))]}

    assert refused(write(folder, row(answer="cut")), map=cut)[-1].found == "image file is truncated"


def test_rows_with_and_without_an_image_mix(folder):
    rows = read(write(folder, row(images=["red.png"]), row(images=[])))
    assert [len(row["images"]) for row in rows] == [1, 0]
    assert rows[1]["prompt"][0]["content"] == ASKED[1:]


def test_an_empty_cell_is_no_image_and_hides_none(folder):
    (made,) = read(write(folder, row(images=[], image="red.png")))
    assert len(made["images"]) == 1
    (folder / "rows.csv").write_text("question,answer,image\nWhat?,red,red.png\nWhat?,red,\n")
    assert [len(row["images"]) for row in read(folder / "rows.csv")] == [1, 0]


def test_any_turn_of_any_row_may_have_the_only_image(folder):
    asked = [
        "Hello",
        [{"type": "image", "image": "red.png"}, {"type": "text", "text": "What is it?"}],
    ]
    turns = [
        [{"role": "user", "content": turn}, {"role": "assistant", "content": "red"}]
        for turn in asked
    ]
    path = write(folder, *({"messages": talk} for talk in turns))
    assert [len(row["images"]) for row in read(path, to="messages")] == [0, 1]
    node = {"_target_": LOADER, "path": path, "split": {"train": "train"}}
    checked = check_dataset(node, "messages")
    assert checked.media
    assert not checked.faults


# --- Bad images -----------------------------------------------------------------------------------


def bomb():
    """A PNG of 20,000 x 20,000 pixels in a few bytes."""
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    return join_png([(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")])


def deep():
    """A PNG of 16 bits a pixel, of which RGB would keep the lowest 8, and white for all beyond."""
    Image.new("I;16", (4, 4), 40_000).save(written := io.BytesIO(), "PNG")
    return written.getvalue()


BAD = {
    "missing": (None, "there is no bad.png"),
    "begun": (packed()[:40], "cannot identify image file"),
    "cut": (packed(kind="JPEG")[:-300], "Truncated File Read"),
    "page": (b"<!DOCTYPE html><html>not found</html>", "a web page"),
    "text": (b"a red square", "cannot identify image file"),
    "bomb": (bomb(), "more than 89,478,485 pixels"),
    "deep": (deep(), "pixels of mode I;16"),
    "postscript": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "cannot identify image file",
    ),
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_image_is_named_by_its_row(folder, kind):
    content, finding = BAD[kind]
    if content is not None:
        (folder / "bad.png").write_bytes(content)
    rows = [row(image="red.png"), row(image="bad.png"), row(image="blue.png")]
    summary, fault = faults(write(folder, *rows))
    assert "1 of 3" in summary.found
    assert fault.found.startswith(finding)
    assert fault.where.endswith("train row 1, images[0]")
    assert len(read(folder / "rows.jsonl", bad_rows="drop")) == 2


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("image", "finding"),
    [
        ({"images": ["red.png"] * 65}, "65 images in one row"),
        ({"images": ["red.png"], "question": "<image> or <image>?"}, "1 images, but 2 places"),
        ({"images": ["red.png", "blue.png"], "question": "<image>?"}, "2 images, but 1 places"),
        ({"images": ["red.png"], "answer": "<image>"}, "an image in an answer"),
        ({"images": [7]}, "int in place of an image"),
        ({"images": ["../secret.png"]}, "../secret.png is not below"),
        ({"images": ["link.png"]}, "link.png is not below"),
        ({"images": ["https://example.org/a.png"]}, "the address https://example.org/a.png"),
        ({"images": ["a\0b"]}, "there is no a"),
        ({"images": [f"{'a' * 300}.png"]}, f"there is no {'a' * 80} below"),
        (
            {"question": None, "answer": None, "messages": ANSWERED, "image": "red.png"},
            "1 images, but 0 places",
        ),
        (
            {"question": None, "answer": None, "messages": HEARD},
            "a part of type input_audio in place",
        ),
    ],
)
def test_a_row_may_not_name_files_elsewhere(folder, image, finding):
    packed_file = folder.parent / "secret.png"
    packed_file.write_bytes(packed())
    (folder / "link.png").symlink_to(packed_file)
    *_, fault = faults(write(folder, row(**image)))
    assert fault.found.startswith(finding)
    assert read(write(folder, row(images=["data/link.png"])), image_folder=str(folder.parent))[0][
        "images"
    ]


def test_large_files_plain_text_and_streams_are_refused(folder, monkeypatch):
    path = write(folder, row(image="red.png"))
    monkeypatch.setattr(media_source, "MAX_BYTES", 10)
    assert faults(path)[-1].found == "more than 10 bytes"
    monkeypatch.undo()
    assert (
        faults(write(folder, {"text": "red", "image": "red.png"}))[-1].found
        == "images with plain text"
    )
    (fault,) = refused(path, streaming=True)
    node = {"_target_": LOADER, "path": path, "split": {"train": "train"}, "streaming": True}
    checked = check_dataset(node, "demonstration")  # before anything starts
    assert [fault.fix] == [fault.fix for fault in checked.faults] == ["dataset.streaming=false"]


def test_addresses_are_fetched_only_where_that_is_typed(folder):
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(packed())

        def log_message(self, *_):
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Pages)
    Thread(target=server.serve_forever, daemon=True).start()
    path = write(folder, row(image=f"http://127.0.0.1:{server.server_port}/a.png"))
    assert faults(path)[-1].fix == "dataset.image_urls=true"
    assert read(path, image_urls=True)[0]["images"][0].size == (4, 4)
    server.shutdown()
    server.server_close()
    local_rows = write(
        folder, row(image=f"http://127.0.0.1:{server.server_port}/b.png"), name="other.jsonl"
    )
    assert "refused" in refused(local_rows, image_urls=True)[-1].found


def test_trainers_models_and_weights_that_know_no_images_say_so():
    sft = {
        "trainer": {"_target_": "trl.SFTTrainer", "images": True, "args": {}},
        "model": {"path": "a/b"},
    }
    elsewhere = {"dataset": {"path": "s3://bucket/rows.jsonl"}}  # never read for a fault
    assert (
        list(find_media_faults(sft, IMAGE, is_read=True))
        == list(find_media_faults(sft | elsewhere, IMAGE, is_read=True))
        == []
    )
    (fault,) = find_media_faults(sft, IMAGE, is_read=False)
    assert "for a/b, which comes without a processor" in fault.found
    (fault,) = find_media_faults(
        sft | {"trainer": {"_target_": "trl.RewardTrainer", "args": {}}}, IMAGE, is_read=True
    )
    assert "RewardTrainer" in fault.found
    grouped = sft["trainer"] | {"args": {"train_sampling_strategy": "group_by_length"}}
    (fault,) = find_media_faults(sft | {"trainer": grouped}, IMAGE, is_read=True)
    assert fault.fix == "trainer.args.train_sampling_strategy=random"
    (fault,) = find_media_faults(sft | {"weight": {"answers": {}}}, IMAGE, is_read=True)
    assert fault.fix.startswith("weight=none trainer.args.assistant_only_loss=true")


@pytest.mark.parametrize("column", ["image", "images", "photo"])
def test_a_fault_of_images_names_the_column_that_can_be_left_out(folder, column):
    path = write(folder, {column: "red.png", "question": "?", "answer": "!"})
    named = {"columns": {"images": column}} if column == "photo" else {}
    checked = check_dataset({"_target_": LOADER, "path": str(path), **named}, "messages")
    assert checked.faults == []
    assert checked.media == {IMAGE: column}
    cfg = {
        "trainer": {"_target_": "trl.SFTTrainer", "images": True, "args": {}},
        "model": {"path": "a/b"},
    }
    (fault,) = find_media_faults(cfg, IMAGE, is_read=False, column=checked.media[IMAGE])
    assert f"dataset.without=[{column}]" in fault.fix


@pytest.mark.slow
def test_trainers_that_read_images_in_turns_need_them_in_all_rows_or_none(folder, seeing):
    rows = read(write(folder, row(image="red.png"), row(image=None)), "prompt")
    args = {kind: {"_target_": f"trl.{kind.upper()}Config"} for kind in ("grpo", "rloo")}
    with pytest.raises(DataError, match="1 rows without an image"):
        check_bounds(TrainerPart.read({"args": args["grpo"]}), seeing[0], rows)
    check_bounds(TrainerPart.read({"args": args["grpo"]}), seeing[0], rows.select([1]))
    check_bounds(TrainerPart.read({"args": args["rloo"]}), seeing[0], rows)


@pytest.mark.slow
def test_the_words_of_a_new_model_that_sees_are_those_of_its_tokenizer():
    cfg = compose(["experiment=toy_picture", "speed=max"]).cfg
    assert ModelWeights(source_of(Experiment.read(cfg)), dtype="float32").count == 220_864
    assert "train_sampling_strategy" not in cfg["trainer"]["args"]


def test_texts_are_read_as_before():
    rows = [{"prompt": "a <image>", "completion": "b"}]
    conversion = RowRequest(to="demonstration").start_conversion(
        ["prompt", "completion"], rows[0], "rows"
    )
    assert not conversion.modalities
    assert conversion.first(rows) == rows[0]


# --- Models that see ------------------------------------------------------------------------------


MODEL = read_options("model")["new_vision"]
KEYS = {key: value for key, value in MODEL.items() if key not in ("_target_", "tokenizer")}


@pytest.fixture(scope="module")
def seeing():
    """The tokenizer of the shipped processor, and a new model with it."""
    tokenizer = load_tokenizer("runner://model/tiny_vision")
    return tokenizer, new_model(tokenizer, **KEYS).eval()


def asked(colour, size=16):
    prompt = [{"role": "user", "content": ASKED}]
    return {"prompt": prompt, "images": [Image.new("RGB", (size, size), colour)]}


def test_a_prompt_with_an_image_has_its_pixels_and_a_token_for_each_place(seeing):
    tokenizer, _ = seeing
    ids = encode_prompt(tokenizer, asked(RED)["prompt"], asked(RED))
    # the patches, and the class token of CLIP
    assert ids.count(tokenizer.convert_tokens_to_ids("<image>")) == 17
    assert ids.media_inputs["pixel_values"].shape == (1, 3, 16, 16)
    plain = [{"role": "user", "content": "What is it?"}]
    assert encode_prompt(tokenizer, plain, {}).media_inputs is None
    assert tokenizer.decode(encode_prompt(tokenizer, plain, {})).endswith(
        "What is it?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_processor_without_a_tokenizer_is_a_fault(tmp_path):
    shipped_folder = Path(shipped("runner://model/tiny_vision"))
    settings = json.loads((shipped_folder / "processor_config.json").read_text())
    content = json.dumps(settings["image_processor"])
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_tokenizer(str(tmp_path))


def test_all_special_cases_of_images_are_in_their_record():
    """Apart from that, there are only keys of users and names of other tools."""
    special = re.compile(r"""["'<](images?|vision_config|image_(processor|token\w*))["'>]""")
    package = Path(modality.__file__).parent.parent
    elsewhere = set()
    for path in package.rglob("*.py"):
        if special.search(path.read_text(encoding="utf-8")):
            elsewhere.add(str(path.relative_to(package)))
    assert elsewhere == {"schema/modality.py", "schema/role.py", "importers/llama_factory.py"}


@pytest.mark.slow
def test_answers_depend_on_the_image_and_not_on_what_is_beside_it(seeing):
    tokenizer, model = seeing
    rows = [
        asked(RED),
        {"prompt": [{"role": "user", "content": "Two?"}]},
        asked(BLUE, 40),
        asked(RED),
    ]
    generator = TextGenerator(model, tokenizer, Sampling(5, temperature=0))
    together = [answer.log_probability for answer in generator.complete_all(rows)]
    alone = [generator.complete_all([row])[0].log_probability for row in rows]
    assert together == pytest.approx(alone, abs=1e-4)
    assert together[0] == pytest.approx(together[3], abs=1e-4)
    assert abs(together[0] - together[2]) > 1e-4
    answered = [row | {"completion": [{"role": "assistant", "content": "red"}]} for row in rows]
    reader = AnswerReader(model, tokenizer)
    together = [sum(log_probs) for log_probs in reader.read(answered).log_probs]
    assert together == pytest.approx(
        [sum(reader.read([row]).log_probs[0]) for row in answered], abs=1e-4
    )
    assert abs(together[0] - together[2]) > 1e-4


@pytest.mark.parametrize("kind", ["llava", "mixtral"])
def test_weights_that_are_saved_under_other_names_are_taken(seeing, kind, tmp_path):
    """If no name fits, a trainer resumes from a checkpoint with nothing but a warning."""
    tokenizer, model = seeing
    if kind == "mixtral":
        tokenizer = load_tokenizer("runner://model/tiny")
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_local_experts": 2,
        }
        model = new_model(
            tokenizer, model_type=kind, num_attention_heads=2, num_key_value_heads=2, **sizes
        )
    fresh = new_model(tokenizer, **KEYS, seed=1) if kind == "llava" else copy.deepcopy(model)
    with torch.no_grad():
        [weight.zero_() for weight in fresh.parameters()]
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert set(saved) - set(fresh.state_dict())
    report = fresh.load_state_dict(saved, strict=False)
    assert not report.missing_keys
    assert not report.unexpected_keys
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, fresh.state_dict()[name])


# --- Whole runs -----------------------------------------------------------------------------------

SMALL = (
    "model=new_vision",
    "dataset=toy_picture",
    "dataset.limit.train=16",
    "dataset.limit.eval=4",
    "trainer.args.max_steps=2",
    "trainer.args.logging_steps=1",
    "trainer.args.per_device_train_batch_size=8",
)
OWN = {"sft": (), "dpo": ("metric=none",), "kto": ("metric=none",)}
OWN |= dict.fromkeys(
    ("grpo", "rloo"), ("trainer.args.max_completion_length=4", "trainer.args.num_generations=4")
)


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", OWN)
def test_five_trainers_learn_from_images(train, trainer):
    done = train(f"trainer={trainer}", *SMALL, *OWN[trainer])
    assert done.code == 0
    assert done.state() == "finished"
    assert math.isfinite(done.lines[-1]["loss"])
    assert isinstance(AutoProcessor.from_pretrained(done.run.model), LlavaProcessor)
    _, report = AutoModelForImageTextToText.from_pretrained(
        done.run.model, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    written = done.run.folder / "completions.jsonl"
    if trainer == "sft":
        part = json.loads(written.read_text().splitlines()[0])["prompt"][0]["content"][0]
        assert part["type"] == "image"
        assert part["image"].endswith(", 16 x 16")
        assert len(part["image"]) < 40


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(train):
    words = (
        "trainer=sft",
        *SMALL,
        "trainer.args.max_steps=4",
        "trainer.args.save_steps=2",
        "learning_rate=3e-3",
    )
    run = train(*words, "metric=none").run
    uninterrupted = files_of(run.model)["model.safetensors"]
    for folder in (run.model, run.checkpoints / "checkpoint-4"):
        shutil.rmtree(folder)
    run.set_status("running", step=2)
    assert train(*words, "metric=none").code == 0
    assert files_of(run.model)["model.safetensors"] == uninterrupted


@pytest.mark.slow
def test_adapters_leave_the_vision_tower_unchanged_or_train_it_fully(train, capsys):
    start = train("trainer=sft", *SMALL, "metric=none", name="start").run
    words = (
        "trainer=sft",
        f"model={start.model}",
        *SMALL[1:],
        "metric=none",
        "trainer.args.save_steps=1",
    )
    for peft, sees in (("vision_lora", False), ("vision_full_lora", True)):
        done = train(*words, f"peft={peft}", name=peft)
        names = load_file(done.run.model / "adapter_model.safetensors")
        assert done.code == 0
        assert any("language_model" in name and "lora" in name for name in names)
        assert any("vision" in name for name in names) == sees
        for name in names:
            if "language_model" not in name:
                assert "lora" not in name
    capsys.readouterr()
    assert main(["evaluate", str(done.run.folder), "metric=none"]) == 0


@pytest.mark.slow
def test_a_preview_shows_the_images(capsys, tmp_path):
    assert main(["preview", "trainer=dpo", *SMALL, "rows=1", f"html={tmp_path / 'page.html'}"]) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"^chosen: \d+ of \d+ tokens trained \(\d+%\), image \w{12}, 16 x 16$", shown, re.MULTILINE
    )
    assert (tmp_path / "page.html").read_text().count('src="data:image/png;base64,') == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "finding"),
    [
        (("trainer=ppo",), "rows with images, for PPOTrainer"),
        (("trainer=reward", "model=tiny", "reward=none"), "rows with images, for RewardTrainer"),
        (("trainer=sft", "model=tiny"), "which comes without a processor of images"),
        (("trainer=sft", "weight=answers"), "whose tokens are made batch by batch"),
    ],
)
def test_parts_that_take_no_images_are_refused_before_the_start(words, finding, capsys):
    assert main([*SMALL, *words, "--dry-run"]) == 2
    assert finding in capsys.readouterr().err


def test_the_fingerprint_of_rows_is_that_of_their_images_wherever_these_are(folder, tmp_path):
    rows = [
        {"image": name, "prompt": "What is it?", "completion": name[:3]}
        for name in ("red.png", "blue.png")
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shutil.copytree(folder, elsewhere := tmp_path / "elsewhere")

    def of(place):
        return fingerprint(
            load_rows(path=str(place / "rows.jsonl"), split={"train": "train"}, to="demonstration")[
                0
            ]
        )

    first = of(folder)
    assert of(elsewhere) == first == of(folder)
    (folder / "red.png").write_bytes((folder / "blue.png").read_bytes())
    assert of(folder) != first == of(elsewhere)
    (elsewhere / "red.png").unlink()
    assert of(elsewhere) not in (first, of(folder))


def test_texts_and_images_are_mixed_and_a_part_says_what_reads_it(folder):
    (folder / "seen.jsonl").write_text(
        json.dumps({"image": "red.png", "question": "What is it?", "answer": "red"})
    )
    (folder / "heard.jsonl").write_text(json.dumps({"question": "2+2?", "answer": "4"}))
    loader = {"_target_": LOADER, "_partial_": True}
    parts = {name: loader | {"path": str(folder / f"{name}.jsonl")} for name in ("heard", "seen")}
    node = {"_target_": "runner.dataset.mix.mix_rows", "parts": parts}
    with pytest.raises(DataError, match="no _target_"):
        serve(node | {"parts": parts | {"lost": {"path": "rows.jsonl"}}}, to="messages")
    rows, _ = serve(node, to="messages")
    images = sorted(
        (len(row["images"]), json.dumps([row.get("messages"), row.get("prompt")])) for row in rows
    )
    assert [count for count, _ in images] == [0, 1]
    assert "2+2?" in images[0][1]
    assert '"image"' not in images[0][1]
    assert '"image"' in images[1][1]
