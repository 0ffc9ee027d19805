#!/usr/bin/env bash
# Table 4 of the AAA paper in its own setting: BERT-base (cased) on the whole of SST-2, CoLA, MRPC and RTE, batches of
# 4 × 32; AAA at the sparsity of each group's fixed patterns. Three seeds. The paper trains 30,000 steps on every set;
# here the small sets train 8 epochs, half of them dense, and SST-2 4.
#
#   ENCODER_CASED   folder of bert-base-cased in Transformers' format, with safetensors
#   DATA            folder with sst2/, cola/, mrpc/ and rte/, each with train.tsv and dev.tsv (see benchmarks/quality)
set -euo pipefail
: "${ENCODER_CASED:?folder of bert-base-cased}" "${DATA:?folder with sst2/, cola/, mrpc/ and rte/}"

measure() { # DATA_SET METRIC EPOCHS
    local set=$1 metric=$2 epochs=$3
    group() { # NAME LIKE ATTENTIONS
        "$PYTHON" benchmarks/quality/patterns.py "$ENCODER_CASED" --data "$DATA/$set" --results "$OUT" \
            --name "bert_base_${set}_$1" --like "$2" --attentions "$3" --metric "$metric" --epochs "$epochs" \
            --dense-epochs $((epochs / 2)) --learning-rate 5e-5 --batch-size 128
    }
    group longformer local2+global2 softmax,local2,local2+global2,local3+global1,axis+local2
    group bigbird local2+global1+random1 softmax,local2+global1+random1,axis+local2
    group random local1+global1+random2 softmax,local1+global1+random2,axis+local2
}

measure sst2 accuracy 4
measure cola matthews 8
measure mrpc f1 8
measure rte accuracy 8
