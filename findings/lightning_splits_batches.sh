#!/usr/bin/env bash
# lightning 2.6.6 and pytorch-metric-learning 2.9.0, where the two meet: on several devices,
# MPerClassSampler's m images per class are no longer in one batch.
#
# Lightning wraps the loader's sampler in a DistributedSampler with shuffle=True, which mixes the
# list that MPerClassSampler drew class by class, before it deals it out to the devices. So a batch
# is a random one: with m = 4 and two devices a third to a half of the images here have no second
# one of their class in it, so that pair and triplet losses cannot pull them anywhere. The batch has
# its size, the loss is finite, and no message speaks of the sampler. Way out:
# use_distributed_sampler=False, and in on_fit_start np.random.seed with the rank, because otherwise
# all devices draw the same batches. accelerate 1.15.0 hands out whole batches.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="lightning==2.6.6 pytorch-metric-learning==2.9.0 accelerate==1.15.0 torch==2.14.1
    torchvision==0.29.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
if "${PYTHON:-python3}" - > lent 2> /dev/null <<'END'
from importlib.metadata import distribution, version
assert version("torch").split("+")[0] == "2.14.1"
assert version("torchvision").split("+")[0] == "0.29.1"
print(distribution("torch").locate_file(""))
END
then
    cp lent "$(echo venv/lib/python3*/site-packages)/lent.pth"
else
    echo "Python has not both torch 2.14.1 and torchvision 0.29.1: installing 5.6 GB" >&2
fi
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
cat > train.py <<'END'
import json
import sys

import lightning
import numpy as np
import torch
from accelerate.data_loader import BatchSamplerShard
from pytorch_metric_learning import samplers
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

SEED = "seeded by rank"
LABELS = torch.arange(20).repeat_interleave(10)


def sampler():
    return samplers.MPerClassSampler(LABELS, m=4, batch_size=16, length_before_new_iter=160)


def lonely(labels):
    """How many images have no second one of their class in the batch"""
    return (labels[:, None] == labels).sum(1).eq(1).sum().item()


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.drawn = torch.nn.Linear(1, 1), []

    def on_fit_start(self):
        if SEED in sys.argv:
            np.random.seed(self.global_rank)

    def training_step(self, batch):
        self.drawn.append(batch[0].long().flatten().tolist())
        return self.layer(batch[0]).sum()

    def on_train_end(self):
        with open(f"{self.trainer.world_size}-{self.global_rank}", "w") as file:
            json.dump(self.drawn, file)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    shares, equal = [], []
    for devices, wrap, how in ((1, True, ""), (2, True, ""), (2, False, ""), (2, False, SEED)):
        sys.argv[1:] = [how]                            # the other processes see it
        dataset = TensorDataset(torch.arange(200.0)[:, None], LABELS)
        loader = DataLoader(dataset, 16, sampler=sampler())
        lightning.Trainer(
            accelerator="cpu", devices=devices, strategy="ddp_spawn" if devices > 1 else "auto",
            max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, use_distributed_sampler=wrap).fit(Network(), loader)
        drawn = [json.load(open(f"{devices}-{rank}")) for rank in range(devices)]
        batches = sum(drawn, [])
        without, images = sum(lonely(LABELS[batch]) for batch in batches), len(sum(batches, []))
        shares.append(without / images)
        equal.append(drawn[0][0] == drawn[-1][0])
        print(f"Lightning, devices={devices}, use_distributed_sampler={wrap} {how}: {without} of "
              f"{images} images without a positive in their batch;", "the same first batch on all"
              if equal[-1] else "another first batch on each")
    shards = [BatchSamplerShard(BatchSampler(sampler(), 16, False), 2, rank) for rank in (0, 1)]
    batches = [batch for shard in shards for batch in shard]
    whole = sum(lonely(LABELS[batch]) for batch in batches)
    print(f"accelerate, 2 processes: {whole} of {sum(map(len, batches))}")
    sys.exit(shares[0] > 0 or shares[1] < 0.2 or shares[2] > 0 or shares[3] > 0 or whole > 0
             or equal[1:] != [False, True, False])
END
OMP_NUM_THREADS=1 venv/bin/python train.py 2> errors | grep of; status=${PIPESTATUS[0]}
if grep -i sampler errors; then
    echo "a message speaks of a sampler"
    status=1
fi
[ "$status" = 0 ] || cat errors
exit "$status"
