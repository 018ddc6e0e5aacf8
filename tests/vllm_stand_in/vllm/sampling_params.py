"""The request to vLLM."""


class SamplingParams:
    def __init__(self, **kwargs):
        self.given = kwargs


class StructuredOutputsParams:
    pass
