"""Models that are spread over processes: refused where they cannot be, and whole in ``model/`` where they can."""

import pytest

from runner import preflight
from runner.__main__ import main
from runner.check import sharding


@pytest.mark.parametrize(
    ("variables", "words", "code", "said"),
    [
        ({}, ["trainer.args.fsdp=true", "launcher.num_processes=2"], 5, "trainer.args.fsdp=null"),
        ({}, ["trainer.args.fsdp=full_shard"], 5, "full_shard, and there is no GPU here"),
        ({}, ["trainer.args.fsdp=true", "trainer.args.use_cpu=true"], 5, "true, and there is no GPU here"),
        ({}, ["trainer.args.parallelism_config._target_=accelerate.ParallelismConfig"], 5, "parallelism_config=null"),
        ({"ACCELERATE_USE_FSDP": "true", "WORLD_SIZE": "2"}, [], 5, "unset ACCELERATE_USE_FSDP"),
        ({}, ["trainer.args.parallelism_config.tp_size=2"], 2, "_target_=accelerate.ParallelismConfig"),
        ({}, ["trainer=ppo", "trainer.args.fsdp=true"], 2, "trainer.args.fsdp=null"),
        ({}, ["trainer=ppo", "trainer.args.deepspeed=zero2.json"], 2, "trainer.args.deepspeed"),
    ],
)
def test_a_model_is_not_said_to_be_sharded_where_it_cannot_be(
    variables, words, code, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "has_devices", lambda: "trainer.args.use_cpu=true" in words)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(words) == code
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert main([*words, "--dry-run"]) == (0 if code == 5 else 2)


def test_accelerate_shards_no_model_on_a_cpu_unless_it_takes_it_for_a_gpu(monkeypatch):
    """Where this fails accelerate has changed, and the refusals or the exception for these tests may go."""
    import torch
    from accelerate import DistributedType, PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import TorchDynamoPlugin

    monkeypatch.setenv("RUNNER_TEST_FSDP_ON_CPU", "1")
    kinds = []
    for pretend in (bool, sharding.shards_on_cpu):
        cpu = {"distributed_type": DistributedType.MULTI_CPU, "device": torch.device("cpu"), "num_processes": 2}
        monkeypatch.setattr(PartialState, "_shared_state", cpu)
        monkeypatch.setattr(AcceleratorState, "_shared_state", {})
        pretend()
        asked = {"fsdp_plugin": object(), "dynamo_plugin": TorchDynamoPlugin()}
        kinds.append(AcceleratorState(cpu=True, _from_accelerator=True, **asked).distributed_type)
    assert kinds == [DistributedType.MULTI_CPU, DistributedType.FSDP]
