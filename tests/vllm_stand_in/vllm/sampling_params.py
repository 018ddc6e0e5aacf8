"""What vLLM is asked for."""


class SamplingParams:
    def __init__(self, **given):
        assert "seed" not in given  # every prompt would be answered with the same numbers
        self.given = given


class StructuredOutputsParams:
    pass
