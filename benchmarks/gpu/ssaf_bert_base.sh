#!/usr/bin/env bash
# The SSAF paper's own setting: pretrained BERT-base on whole SST-1 (λ = -3) and SST-2 (λ = -4), learning rate
# 2e-5, batches of 16, 4 epochs, against softmax. Three seeds, side by side.
#
#   ENCODER   folder of bert-base-uncased in Transformers' format, with safetensors
#   DATA      folder with sst1/ and sst2/, each with train.tsv and dev.tsv (see benchmarks/quality)
set -euo pipefail
: "${ENCODER:?folder of bert-base-uncased}" "${DATA:?folder with sst1/ and sst2/}"

measure() { # NAME DATA_SET LAMBDAS
    "$PYTHON" benchmarks/quality/seeds.py benchmarks/quality/ssaf_lambdas.py "$ENCODER" --data "$DATA/$2" \
        --name "$1" --results "$OUT" --lambdas "$3" --epochs 4 --learning-rate 2e-5 --batch-size 16
}

measure bert_base_sst1 sst1 -3
measure bert_base_sst2 sst2 -4
