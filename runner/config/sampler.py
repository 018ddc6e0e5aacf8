"""``trainer.sampler``: the runner's sampler, that of transformers, or vLLM.

Runs of earlier versions have no such key, and go on as they began. Nor does it enter the key of a
run in which transformers or vLLM sample, so that those runs keep theirs.
"""

from dataclasses import dataclass, replace

SAMPLER = "sampler"
SAMPLER_KEY = f"trainer.{SAMPLER}"
RUNNER = "runner"
LIBRARY = "transformers"
VLLM = "vllm"


@dataclass(frozen=True)
class SamplerChoice:
    """The sampler of a configuration, and the reason for it."""

    value: str
    reason: str
    is_automatic: bool
    begun: str = ""  # the folder of a run that began with transformers, and goes on with it

    def __str__(self) -> str:
        if self.begun:
            return (
                f"{LIBRARY}, with which {self.begun} began; {SAMPLER_KEY}={RUNNER} is another run"
            )
        if self.value == LIBRARY and self.is_automatic:
            return f"without {SAMPLER}={RUNNER}: {self.reason}"
        return f"{SAMPLER}={self.value}: {self.reason}"

    def as_begun(self, folder: str) -> "SamplerChoice":
        """The same where the run of a folder has begun with transformers."""
        return replace(self, value=LIBRARY, begun=folder)
