"""A model at work: completions and likelihoods of rows, and their figures by metrics and rewards.

Sampling: ``sampler`` (prompts -> token ids; the one loop that samples, used by PPO, evaluations,
predictions and callbacks), ``vllm_engine`` and ``vllm_server`` (vLLM in its place, in this process
or elsewhere, with weights that ``vllm_worker`` lets it take on a CPU), ``padding`` (rows of unlike
length -> batches of so many tokens), ``completion`` (rows -> completions as text), ``agent``
(completions of several turns with tools), ``episode`` (one of them, and what its environment is
asked), ``environment`` (environments by name) and ``tool_guard`` (the methods and tools themselves,
in time and checked).

Figures: ``answer_reader`` (known answers), ``reward_model`` (completions -> scores), ``earned``
(what completions earn of all rewards) and ``judge`` (metrics and rewards on answers of both kinds).

Their inputs and outputs: ``held_out_rows`` (dataset -> rows), ``budget`` (how much evaluations
sample) and ``prediction`` (completions as a file that an interrupted command continues).
"""

# The target of a dataset whose rows the environment makes.
ENVIRONMENT_ROWS = "runner.generate.environment.rows.environment_rows"
