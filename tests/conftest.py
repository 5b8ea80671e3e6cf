"""What every test shares: no hub, and one thread, since tiny models gain nothing from more."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait must not take the cores of other jobs

import torch

torch.set_num_threads(1)
