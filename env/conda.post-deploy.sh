#!/usr/bin/env bash
# Run by Snakemake after it has made the environment of conda.yaml, from the folder of the study.
set -euo pipefail
python -m pip install --requirement requirements.txt
