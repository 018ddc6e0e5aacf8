"""The request to vLLM."""


class SamplingParams:
    def __init__(self, **kwargs):
        assert "seed" not in kwargs  # every prompt would be answered with the same numbers
        self.given = kwargs


class StructuredOutputsParams:
    pass
