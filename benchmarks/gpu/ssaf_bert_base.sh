#!/usr/bin/env bash
# The SSAF paper's own setting: BERT-base on whole SST-1 (λ = -3) and SST-2 (λ = -4), learning rate 2e-5,
# batches of 16, 4 epochs, against softmax; pretrained, and from random weights ("Np"). Three seeds.
#
#   ENCODER   folder of bert-base-uncased in Transformers' format, with safetensors
#   DATA      folder with sst1/ and sst2/, each with train.tsv and dev.tsv (see benchmarks/quality)
set -euo pipefail
: "${ENCODER:?folder of bert-base-uncased}" "${DATA:?folder with sst1/ and sst2/}"

measure() { # NAME DATA_SET LAMBDAS [OPTION …]
    local name=$1 set=$2 lambdas=$3
    shift 3
    "$PYTHON" benchmarks/quality/ssaf_lambdas.py "$ENCODER" --data "$DATA/$set" --name "$name" \
        --results "$OUT" --lambdas "$lambdas" --epochs 4 --learning-rate 2e-5 --batch-size 16 "$@"
}

measure bert_base_sst2 sst2 -4
measure bert_base_sst1 sst1 -3
measure bert_base_sst2_np sst2 -4 --from-scratch
measure bert_base_sst1_np sst1 -3 --from-scratch
