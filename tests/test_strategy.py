"""Models spread over processes.

Refused where they cannot be, and saved whole in ``model/`` where they can.
"""

import copy
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_model
from transformers import AutoTokenizer

from runner.__main__ import main
from runner.config import sharding
from runner.config.composition import compose
from runner.config.experiment import Experiment
from runner.errors import RunnerError
from runner.run import Run
from runner.run.key import key_of
from runner.training.components.model import build_model
from runner.training.model_folder import save_model
from runner.training.run_facts import find_process_dependence
from runner.validate import machine

EFFICIENT = "trainer.args.fsdp_config.cpu_ram_efficient_loading"


@pytest.mark.grid(8)
@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("variables", "words", "code", "said"),
    [
        ({}, ["trainer.args.fsdp=true", "launcher.num_processes=2"], 5, "trainer.args.fsdp=null"),
        ({}, ["trainer.args.fsdp=full_shard"], 5, "full_shard, but there is no GPU here"),
        (
            {},
            ["trainer.args.fsdp=true", "trainer.args.use_cpu=true"],
            5,
            "true, but there is no GPU here",
        ),
        (
            {},
            ["trainer.args.parallelism_config._target_=accelerate.ParallelismConfig"],
            5,
            "parallelism_config=null",
        ),
        ({"ACCELERATE_USE_FSDP": "true", "WORLD_SIZE": "2"}, [], 5, "unset ACCELERATE_USE_FSDP"),
        (
            {},
            ["trainer.args.parallelism_config.tp_size=2"],
            2,
            "_target_=accelerate.ParallelismConfig",
        ),
        ({}, ["strategy=fsdp2", "launcher.num_processes=2"], 5, "strategy=none"),
        ({}, ["strategy=hsdp", "launcher.num_processes=4"], 5, "strategy=none"),
        ({"RUNNER_TEST_FSDP_ON_CPU": "1"}, ["strategy=fsdp2"], 5, "launcher.num_processes=2"),
        ({}, ["strategy=fsdp2", "peft=lora", "quant=8bit"], 2, "strategy=none"),
        ({}, ["strategy=zero3", "peft=lora", "quant=4bit"], 2, "strategy=none"),
        ({}, ["strategy=fsdp2", "peft=lora", "quant=4bit"], 2, "bnb_4bit_quant_storage=bfloat16"),
        ({}, ["strategy=fsdp2", "model.device_map=auto"], 2, "model.device_map=null"),
        ({}, ["trainer=ppo", "strategy=fsdp2", f"{EFFICIENT}=true"], 2, f"{EFFICIENT}=false"),
        (
            {},
            [
                "trainer.args.parallelism_config._target_=accelerate.ParallelismConfig",
                "trainer.args.parallelism_config.tp_size=2",
                "resume=outputs/x/y",
            ],
            2,
            "resume=null",
        ),
        ({}, ["strategy=hsdp"], 2, "type      launcher.num_processes=4\n"),
        (
            {},
            ["strategy=hsdp", "launcher.num_processes=8"],
            2,
            "=4, or trainer.args.parallelism_config.dp_shard_size=4",
        ),
        (
            {"RUNNER_TEST_FSDP_ON_CPU": "1"},
            ["strategy=hsdp", "trainer.args.parallelism_config.dp_shard_size=1"],
            2,
            "dp_replicate_size 2 x dp_shard_size 1 = 2, but 1 train",
        ),
        ({}, ["trainer=ppo", "trainer.args.deepspeed=zero2.json"], 2, "trainer.args.deepspeed"),
        ({}, ["trainer.args.fsdp=true", "peft=prompt"], 2, "peft=lora"),
        (
            {},
            [
                "trainer.args.fsdp=true",
                "peft=lora",
                "model=hub",
                "model.path=org/name",
                "model.merge=true",
            ],
            2,
            "peft=none",
        ),
    ],
)
def test_a_model_that_cannot_be_sharded_is_not_called_sharded(
    variables, words, code, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "has_devices", lambda: "trainer.args.use_cpu=true" in words)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(words) == code
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main([*words, "--dry-run"]) == code


def test_accelerate_shards_no_model_on_a_cpu(monkeypatch):
    """If this fails, accelerate has changed; the refusals or the tests' exception may go."""
    import torch
    from accelerate import DistributedType, PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import TorchDynamoPlugin

    monkeypatch.setenv("RUNNER_TEST_FSDP_ON_CPU", "1")
    kinds = []
    for pretend in (bool, sharding.shards_on_cpu):
        cpu = {
            "distributed_type": DistributedType.MULTI_CPU,
            "device": torch.device("cpu"),
            "num_processes": 2,
        }
        monkeypatch.setattr(PartialState, "_shared_state", cpu)
        monkeypatch.setattr(AcceleratorState, "_shared_state", {})
        pretend()
        asked = {"fsdp_plugin": object(), "dynamo_plugin": TorchDynamoPlugin()}
        kinds.append(AcceleratorState(cpu=True, _from_accelerator=True, **asked).distributed_type)
    assert kinds == [DistributedType.MULTI_CPU, DistributedType.FSDP]


FSDP = ("strategy=fsdp2", "trainer.args.fsdp_config.state_dict_type=SHARDED_STATE_DICT")
SHORT = (
    "trainer=sft",
    "dataset.limit.train=64",
    "dataset.limit.eval=8",
    "trainer.args.max_steps=2",
    "metric=none",
)
TWO = ("launcher.num_processes=2", "trainer.args.logging_steps=1")


@pytest.mark.dear("two processes train twice")
@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("settings", [["peft=lora"], ["peft=none"], ["trainer=ppo", "peft=lora"]])
def test_a_sharded_run_saves_the_model_that_whole_copies_do(runner, settings):
    tiny_model(runner.folder / "base")
    words = (
        *SHORT,
        *settings,
        "trainer.args.optim=sgd",
        "learning_rate=0.1",
        "model=hub",
        "model.path=base",
    )
    saved = {}
    rows = "trainer.args.per_device_train_batch_size=8"
    for started in runner.start_two(
        *words, *FSDP, rows, "name=sharded", RUNNER_TEST_FSDP_ON_CPU="1"
    ):
        assert started.wait().returncode == 0
    runner(*words, "trainer.args.per_device_train_batch_size=16", "name=whole")
    for name in ("whole", "sharded"):
        (folder,) = runner.runs(name)
        assert bool(list(folder.glob("checkpoints/*/pytorch_model_fsdp*"))) == (name == "sharded")
        (file,) = (folder / "model").glob("*.safetensors")
        saved[name] = load_file(file)
    assert saved["whole"].keys() == saved["sharded"].keys()
    for name, weights in saved["whole"].items():
        assert saved["sharded"][name].numpy() == pytest.approx(weights.numpy(), abs=1e-5)


@pytest.mark.slow
def test_a_process_that_fails_while_it_saves_leaves_no_other_waiting(runner):
    started = runner.start(*SHORT, *TWO, "name=run")
    while not (folders := runner.runs("run")):
        assert not started.ended()
        time.sleep(0.02)
    while Run(folders[0]).status()["state"] != "running":  # what is there before is refused
        assert not started.ended()
        time.sleep(0.02)
    (folders[0] / ".model.new").touch()  # no folder can be made there
    assert started.wait().returncode != 0
    assert Run(folders[0]).status()["state"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["peft=vera", "peft=lora model.path=tied", "model.merge=true model.path=adapter"]
)
def test_each_process_reads_what_accelerate_does_not_hand_out(words, tmp_path, monkeypatch):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_RANK", "1")
    tiny_model(Path("base"), "llama")
    tiny_model(Path("tied"), "qwen2")
    adapter = LoraConfig(task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained("base"), adapter).save_pretrained("adapter")
    cfg = compose(
        ["trainer=sft", "strategy=fsdp2", "model=hub", "model.path=base", *words.split()]
    ).cfg
    args = SimpleNamespace(
        local_process_index=1, fsdp_plugin_args={"cpu_ram_efficient_loading": True}
    )
    model = build_model(Experiment.read(cfg), AutoTokenizer.from_pretrained("base"), args).policy
    for weight in model.parameters():
        assert weight.is_contiguous()
    assert args.fsdp_plugin_args["cpu_ram_efficient_loading"] == ("merge" in words)


@pytest.mark.slow
def test_only_the_first_process_of_a_machine_holds_the_weights_that_it_hands_out(
    tmp_path, monkeypatch
):
    folder = tiny_model(tmp_path / "base")
    monkeypatch.setenv("LOCAL_RANK", "1")
    words = [
        "trainer=dpo",
        "strategy=fsdp2",
        "launcher.num_processes=2",
        "model=hub",
        f"model.path={folder}",
    ]
    cfg = compose(words).cfg
    tokenizer = AutoTokenizer.from_pretrained(folder)
    held = []
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        for process in (0, 1):
            plugin = {"cpu_ram_efficient_loading": True}
            args = SimpleNamespace(local_process_index=process, fsdp_plugin_args=plugin)
            models = build_model(Experiment.read(cfg), tokenizer, args)
            assert plugin["cpu_ram_efficient_loading"]
            held.append((models.policy, models.reference))
    finally:
        torch.distributed.destroy_process_group()
    (real, _), (places, reference) = held
    for model in (places, reference):
        weights = list(model.parameters())
        assert sum(
            0 if weight.is_meta else weight.untyped_storage().nbytes() for weight in weights
        ) <= 4 * len(weights)
        assert [weight.shape for weight in weights] == [
            weight.shape for weight in real.parameters()
        ]
        buffers = dict(model.named_buffers())
        assert buffers
        for name, buffer in real.named_buffers():
            assert torch.equal(buffer, buffers[name])
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    for name in sharding.VARIABLES:
        assert not os.environ.get(name)


class OfOneProcess:
    """The part of a trainer that saves a model.

    Each process writes a file, and the first one is late.
    """

    def __init__(self, rank: int, model, meet, lost=()):
        self.rank = rank
        self.model = model
        self.lost = lost
        self.accelerator = SimpleNamespace(unwrap_model=lambda model: model, wait_for_everyone=meet)
        self.args = SimpleNamespace(to_dict=dict)
        self.processing_class = SimpleNamespace(save_pretrained=lambda folder: None)
        self.is_fsdp_enabled = False

    def is_world_process_zero(self) -> bool:
        return self.rank == 0

    def save_model(self, folder: str) -> None:
        if self.rank == 0:
            saved = {
                name: weight
                for name, weight in self.model.state_dict().items()
                if name not in self.lost
            }
            self.model.save_pretrained(folder, state_dict=saved)
        else:
            # whichever process comes first makes it, as Trainer does
            Path(folder).mkdir(exist_ok=True)
            Path(folder, "of-another").touch()


@pytest.fixture
def tiny():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes))


@pytest.mark.slow
def test_files_saved_by_each_process_are_in_the_model(tiny, tmp_path):
    meet = threading.Barrier(2, timeout=600).wait
    (tmp_path / ".model.new").mkdir()
    first, second = (
        threading.Thread(target=save_model, args=(Run(tmp_path), OfOneProcess(rank, tiny, meet)))
        for rank in (0, 1)
    )
    second.start()
    second.join(0.2)
    first.start()
    first.join()
    second.join()
    assert (tmp_path / "model" / "of-another").exists()
    assert not (tmp_path / ".model.new").exists()


def test_a_run_whose_weights_were_not_all_saved_is_not_finished(tiny, tmp_path):
    lost = OfOneProcess(0, tiny, lambda: None, lost=["model.norm.weight"])
    with pytest.raises(RunnerError, match=r"1 weights were not saved: model\.norm\.weight"):
        save_model(Run(tmp_path), lost)
    assert not (tmp_path / "model").exists()


def test_a_missing_adapter_is_reported(tiny, tmp_path):
    from peft import LoraConfig, get_peft_model

    from runner.model.saved import find_missing

    model = get_peft_model(tiny, LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]))
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    assert find_missing(model, tmp_path) == []
    (tmp_path / "adapter_model.safetensors").unlink()
    assert len(find_missing(model, tmp_path)) == 1


SHARED = (
    "dataset.limit.train=64",
    "dataset.limit.eval=8",
    "metric=none",
    "batch=16",
    "trainer.args.logging_steps=1",
)
SHARED += (
    "trainer.args.per_device_train_batch_size=8",
    "trainer.args.max_steps=4",
    "trainer.args.save_steps=2",
)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "words", ["sft", "dpo", "reward", "ppo", "sft peft=lora", "ppo strategy=fsdp2"]
)
def test_a_shared_batch_has_one_key_on_any_number_of_processes(words):
    alone, two, unsplit = (
        key_of(
            compose(
                [f"trainer={words.split()[0]}", *words.split()[1:], *words_of_run, "batch=16"]
            ).cfg
        )
        for words_of_run in (
            [],
            ["launcher.num_processes=2"],
            ["trainer.args.per_device_train_batch_size=2"],
        )
    )
    assert alone == two == unsplit


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "words",
    [
        "trainer=kto",
        "trainer=grpo",
        "trainer=sft peft=lora peft.lora_dropout=0.1",
        "trainer=dpo trainer.args.loss_type=bco_pair",
        "trainer=dpo trainer.args.loss_type=[sigmoid,sft]",
        "trainer=dpo trainer.args.loss_type=aot",
        "trainer=orpo",
        "trainer=cpo",
        "trainer=ppo trainer.args.rollout_engine=vllm",
        "trainer=ppo reward._target_=mine.f allow=[mine]",
        "trainer=sft strategy=zero2",
    ],
)
def test_steps_that_depend_on_the_processes_have_their_number_in_the_key(words):
    alone, two = (
        key_of(compose([*words.split(), *words_of_run, "batch=16"]).cfg)
        for words_of_run in ([], ["launcher.num_processes=2"])
    )
    assert alone != two


@pytest.mark.dear("a run of one process, and one of two that goes on with one")
@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["dpo", "ppo"])
def test_a_batch_lets_a_run_go_on_by_another_number_of_processes(runner, trainer):
    words = (f"trainer={trainer}", *SHARED)
    runner(*words, "name=one")
    started = runner.start_two(*words, "name=two")
    while not (folders := runner.runs("two")) or Run(folders[0]).status().get("sealed") != 2:
        for process in started:
            assert not process.ended()
        time.sleep(0.01)
    for worker in started:
        worker.send(signal.SIGKILL)
    for each in started:
        each.wait()
    done = runner(*words, "name=two")
    assert "resumes   from step 2" in done.stdout
    alone = Run(runner.runs("one")[0])
    two = Run(runner.runs("two")[0])
    assert alone.folder.name == two.folder.name
    assert two.manifest()["hardware"]["processes"] == 1
    assert "processes: 2 until step 2, then 1" in two.manifest()["notes"]
    runner("report", str(two.folder))
    assert "processes: 2 until step 2, then 1" in (two.folder / "report.html").read_text()
    weights = [load_file(run.model / "model.safetensors") for run in (alone, two)]
    for name, weight in weights[0].items():
        assert weights[1][name].numpy() == pytest.approx(weight.numpy(), abs=1e-5)


@pytest.mark.slow
def test_a_batch_is_not_shared_differently_if_the_epochs_rows_would_change(runner):
    words = ("trainer=sft", *SHARED, "dataset.limit.train=20", "name=run")
    runner(*words)
    refused = runner(*words, "launcher.num_processes=2", "--dry-run", code=2).stderr
    assert "was trained by 1, and another number" in refused
    assert "20 rows are not a multiple of the batch of 16" in refused
    runner(*words, "launcher.num_processes=2", "name=other", "--dry-run")


@pytest.mark.parametrize(
    ("kind", "expected"), [("plain", ""), ("drops", "dropout of 0.5"), ("routes", "experts")]
)
def test_a_model_says_whether_other_processes_would_take_other_steps(kind, expected):
    layers = torch.nn.Sequential(
        torch.nn.Linear(2, 2), torch.nn.Dropout(0.5 if kind == "drops" else 0.0)
    )
    layers.config = SimpleNamespace(output_router_logits=kind == "routes")
    args = SimpleNamespace(max_steps=9, num_train_epochs=1)
    trainer = SimpleNamespace(
        model=layers, accelerator=SimpleNamespace(unwrap_model=lambda model: model), args=args
    )
    trainer.train_dataset = range(32)
    cfg = {
        "batch": 16,
        "trainer": {"form": "text", "shares_batch": ["per_device_train_batch_size"]},
    }
    assert expected in (reason := find_process_dependence(trainer, Experiment.read(cfg)))
    assert bool(reason) == bool(expected)
    # nothing is counted of a stream, whose number of processes is in the key
    del trainer.train_dataset
    assert find_process_dependence(trainer, Experiment.read({"batch": 16})) == ""


@pytest.mark.slow
def test_a_run_whose_layers_are_split_does_not_go_on_from_its_checkpoint(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_TEST_FSDP_ON_CPU", "1")
    sizes = ("._target_=accelerate.ParallelismConfig", ".tp_size=2")
    words = [
        "trainer=sft",
        "launcher.num_processes=2",
        *(f"trainer.args.parallelism_config{size}" for size in sizes),
    ]
    assert main([*words, "--dry-run"]) == 0
    folder = Path(capsys.readouterr().out.split()[-1])
    (folder / "checkpoints" / "checkpoint-3").mkdir(parents=True)
    (folder / "checkpoints" / "checkpoint-3" / "seal.json").touch()
    assert main([*words, "--dry-run"]) == 2
    stderr = capsys.readouterr().err
    assert "parallelism_config.tp_size\n" in stderr
    assert "checkpoint-3" in stderr
    assert "type      name=<another name>" in stderr
    assert main([*words, "name=another", "--dry-run"]) == 0


def test_zero_3_shares_are_gathered_to_be_compared_and_saved(tiny, monkeypatch):
    """Uses a stand-in for DeepSpeed, whose shares have no rows.

    The library itself was tried by hand on a CPU.
    """
    import sys
    from contextlib import contextmanager

    from runner.model.reference_model import match_reference
    from runner.model.saved import gather_weights

    full_weights = {weight: weight.detach().clone() for weight in tiny.parameters()}
    reference = copy.deepcopy(tiny)
    full_weights |= {weight: torch.zeros_like(weight) for weight in reference.parameters()}

    @contextmanager
    def gathered(weights, modifier_rank):
        assert modifier_rank == 0
        for weight in weights:
            weight.data = full_weights[weight]
        yield
        for weight in weights:
            full_weights[weight] = weight.data
            weight.data = torch.empty(0)

    zero = SimpleNamespace(GatheredParameters=gathered)
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(zero=zero))
    for weight in full_weights:
        weight.ds_id = 1
        weight.data = torch.empty(0)
    accelerator = SimpleNamespace(unwrap_model=lambda model, **_: model)
    trainer = SimpleNamespace(model=tiny, ref_model=reference, accelerator=accelerator)
    names = [name for name, _ in tiny.named_parameters()]
    assert match_reference(trainer) == names
    assert not match_reference(trainer)
    shares = zip(tiny.parameters(), reference.parameters(), strict=True)
    for left_weight, right_weight in shares:
        assert torch.equal(full_weights[left_weight], full_weights[right_weight])
    weights = gather_weights(tiny, keep=True)
    assert {name: weight.shape for name, weight in weights.items()} == {
        name: full_weights[weight].shape for name, weight in tiny.named_parameters()
    }
