#!/bin/bash
WEIGHTS=/tmp/Qwen2.5-0.5B-Instruct
tune download Qwen/Qwen2.5-0.5B-Instruct --output-dir $WEIGHTS
tune run --nproc_per_node 4 full_finetune_distributed \
  --config torchtune_dpo.yaml \
  checkpointer.checkpoint_dir=$WEIGHTS \
  optimizer=torch.optim.AdamW optimizer.lr=1e-6 \
  loss=torchtune.modules.loss.CEWithChunkedOutputLoss ~loss.beta ~loss.label_smoothing \
  dataset=torchtune.datasets.instruct_dataset dataset.source=org/rows \
  ~ref_checkpointer
