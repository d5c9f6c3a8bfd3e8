#!/usr/bin/env bash
# lightning 2.6.6 and pytorch-metric-learning 2.9.0, where the two meet: on several devices,
# MPerClassSampler's m images per class are no longer in one batch.
#
# Lightning wraps the loader's sampler so that each device takes every n-th index. MPerClassSampler
# draws class by class, and in every process by NumPy's own state, so that a device sees every n-th
# entry of a list of its own. With m = 4 and two devices about a third of the images has no second
# one of its class in the batch, so that pair and triplet losses cannot pull it anywhere. Nothing is
# said: the batch has its size and the loss is finite. Way out: use_distributed_sampler=False,
# where each device draws whole batches of its own. accelerate 1.15.0 hands out whole batches.
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
import logging
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
import lightning
import torch
from accelerate.data_loader import BatchSamplerShard
from pytorch_metric_learning import samplers
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

LABELS = torch.arange(20).repeat_interleave(10)


def sampler():
    return samplers.MPerClassSampler(LABELS, m=4, batch_size=16, length_before_new_iter=160)


def lonely(labels):
    """How many images have no second one of their class in the batch"""
    return (labels[:, None] == labels).sum(1).eq(1).sum().item()


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.images, self.without = torch.nn.Linear(1, 1), 0, 0

    def training_step(self, batch):
        self.images += len(batch[1])
        self.without += lonely(batch[1])
        return self.layer(batch[0]).sum()

    def on_train_end(self):
        with open(f"{self.trainer.world_size}-{self.global_rank}", "w") as file:
            file.write(f"{self.images} {self.without}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    shares = []
    for devices, wrap in ((1, True), (2, True), (2, False)):
        loader = DataLoader(TensorDataset(torch.zeros(200, 1), LABELS), 16, sampler=sampler())
        lightning.Trainer(
            accelerator="cpu", devices=devices, strategy="ddp_spawn" if devices > 1 else "auto",
            max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, use_distributed_sampler=wrap).fit(Network(), loader)
        counts = [[*map(int, open(f"{devices}-{rank}").read().split())] for rank in range(devices)]
        images, without = map(sum, zip(*counts))
        shares.append(without / images)
        print(f"Lightning, devices={devices}, use_distributed_sampler={wrap}: {without} of "
              f"{images} images without a positive in their batch")
    shards = [BatchSamplerShard(BatchSampler(sampler(), 16, False), 2, rank) for rank in (0, 1)]
    batches = [batch for shard in shards for batch in shard]
    whole = sum(lonely(LABELS[batch]) for batch in batches)
    print(f"accelerate, 2 processes: {whole} of {sum(map(len, batches))}")
    sys.exit(shares[0] > 0 or shares[1] < 0.2 or shares[2] > 0 or whole > 0)
END
OMP_NUM_THREADS=1 venv/bin/python train.py 2> errors | grep of; status=${PIPESTATUS[0]}
[ "$status" = 0 ] || cat errors
exit "$status"
