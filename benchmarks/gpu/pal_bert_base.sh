#!/usr/bin/env bash
# Table 3 of the PAL paper in its own setting: BERT-base on the whole of SST-5, Quora and STS, and CFIMDB as additional
# data; batches of 16 at 2e-5, 3 epochs of 1,800 steps, texts cut at 128 tokens. Three seeds. SNLI is not among the data:
# the paper found that it changes nothing.
#
#   ENCODER   folder of bert-base-uncased in Transformers' format, with safetensors
#   DATA      folder with sst1/, quora/, sts_cs224n/ and cfimdb/, each with train.tsv and dev.tsv (see benchmarks/quality)
set -euo pipefail
: "${ENCODER:?folder of bert-base-uncased}" "${DATA:?folder with sst1/, quora/, sts_cs224n/ and cfimdb/}"

"$PYTHON" benchmarks/quality/pal.py "$ENCODER" --data "$DATA" --results "$OUT" --name bert_base \
    --epochs 3 --steps 1800 --max-length 128 --learning-rate 2e-5
