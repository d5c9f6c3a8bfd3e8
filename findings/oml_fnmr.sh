#!/usr/bin/env bash
# open-metric-learning 4.0.0: FNMR@FMR depends on how many neighbours were looked up, and a metric
# at k may be one at a smaller k; ArcFaceLoss is NaN for embeddings of two dimensions.
#
# calc_fnmr_at_fmr_rr takes the pairs that a RetrievalResults holds for all pairs. That is the
# nearest n_items of each query, 100 by default, so the negatives are the hardest ones and positives
# farther away are no misses: FNMR at an FMR of 10% is 41.3% with 10 items, 17.5% with 100, and 1.7%
# with all 2,000, which is right. EmbeddingMetrics looks up all of them by itself. precision@20 and
# MAP@20 of 5 items are those at 5, under the name of 20: 0.797 and 0.906 for 0.827 and 0.809.
# ArcFaceLoss takes the root of 1 - cos² without a clamp. In two dimensions, as in the paper's
# pictures, a cosine soon reaches 1: of 6 trainings all have NaN weights after 2 to 19 steps.
# Way out: n_items=len(gallery), or EmbeddingMetrics; three dimensions or more for ArcFace.
#
# It asks for NumPy below 2 and is installed without its dependencies, to run with NumPy 2.4.6 here.
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="omegaconf==2.4.0 gdown==6.5.1 validators==0.36.0 albumentations==2.0.8 pandas==2.3.3"
packages="$packages opencv-python-headless==5.0.0.93 matplotlib==3.11.2 tqdm==4.70.1"
packages="$packages torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
venv/bin/pip install -q --disable-pip-version-check --no-deps open-metric-learning==4.0.0 || exit 2
OMP_NUM_THREADS=1 NO_ALBUMENTATIONS_UPDATE=1 venv/bin/python -W ignore - <<'END'
import sys

import torch
from oml.functional.knn import batched_knn
from oml.losses import ArcFaceLoss
from oml.metrics import calc_fnmr_at_fmr_rr, calc_retrieval_metrics_rr
from oml.retrieval import RetrievalResults

torch.manual_seed(0)
labels = torch.arange(200).repeat_interleave(10)
x = torch.randn(200, 32)[labels] + 0.9 * torch.randn(2000, 32)
x = torch.nn.functional.normalize(x, dim=1)
ids, told = torch.arange(2000), {}
for n in (5, 10, 100, 500, 2000):
    found = RetrievalResults(*batched_knn(x, ids, ids, top_n=n, labels_gt=labels))
    fnmr = calc_fnmr_at_fmr_rr(found, (0.01, 0.1))["fnmr@fmr"]
    at = calc_retrieval_metrics_rr(found, precision_top_k=(5, 20), map_top_k=(5, 20), verbose=False)
    told[n] = fnmr[0.1].item(), at["precision"][20].item(), at["map"][20].item()
    print(f"{n} items: FNMR at an FMR of 1% {fnmr[0.01]:.1%}, of 10% {fnmr[0.1]:.1%}; precision at "
          f"5 {at['precision'][5]:.3f}, at 20 {at['precision'][20]:.3f}; MAP at 5 "
          f"{at['map'][5]:.3f}, at 20 {at['map'][20]:.3f}")
distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
same = labels == labels[:, None]
positive, negative = distances[same & ~torch.eye(2000, dtype=bool)], distances[~same]
limit = negative.sort()[0][len(negative) // 10]
true = (positive >= limit).float().mean().item()
print(f"by all pairs, at an FMR of 10%: {true:.1%}")
steps = {}
for dimension in (2, 3):
    for seed in range(6):
        torch.manual_seed(seed)
        centres = torch.randn(8, 32)
        network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(),
                                      torch.nn.Linear(64, dimension))
        loss = ArcFaceLoss(dimension, 8)
        optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()])
        for step in range(1, 201):
            y = torch.randint(8, (64,))
            optimizer.zero_grad()
            loss(network(centres[y] + 0.3 * torch.randn(64, 32)), y).backward()
            optimizer.step()
            if any(weight.isnan().any() for weight in network.parameters()):
                steps.setdefault(dimension, []).append(step)
                break
for dimension in (2, 3):
    print(f"ArcFaceLoss in {dimension} dimensions: NaN after", steps.get(dimension, "no"), "steps")
sys.exit(told[100][0] < 5 * true or told[10][0] < told[100][0] or abs(told[2000][0] - true) > 0.001
         or abs(told[5][1] - told[2000][1]) < 0.01 or told[5][2] < told[2000][2] + 0.05
         or len(steps.get(2, [])) < 5)
END
