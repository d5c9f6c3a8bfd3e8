#!/usr/bin/env bash
# torchmetrics 1.9.0, retrieval metrics: the sign of the scores matters, not only their order.
#
# RetrievalMAP, RetrievalMRR, RetrievalRecall and RetrievalPrecision count a relevant item only if
# its score is above 0, so the usual score of metric learning, minus the distance, gives 0.0, and
# cosine similarities give a value that leaves out the items beyond 90 degrees. HitRate,
# RPrecision and NDCG of the same package do not do so, so that a table of them contradicts
# itself.
# Way out: add a constant that makes all scores positive.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="torchmetrics==1.9.0 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
venv/bin/python - <<'END'
import sys

import torch
from torchmetrics import retrieval

query = torch.zeros(4, dtype=torch.long)
scores = torch.tensor([-0.1, -0.5, -0.7, -0.9])              # minus the distances of four items
relevant = torch.tensor([True, False, True, False])
values = {}
for name in ("MAP", "MRR", "Recall", "Precision", "HitRate", "RPrecision", "NormalizedDCG"):
    metric = getattr(retrieval, f"Retrieval{name}")
    values[name] = []
    for shift in (0, 0.6, 1):
        values[name].append(metric()(scores + shift, relevant, indexes=query).item())
    print(f"{name:14}", *(f"{value:.3f}" for value in values[name]))
print("columns: minus distances; + 0.6, as similarities of both signs; + 1, all positive")
by_sign = [values[name] for name in ("MAP", "MRR", "Recall", "Precision")]
by_order = [values[name] for name in ("HitRate", "RPrecision", "NormalizedDCG")]
sys.exit(not (all(row[0] == 0 < row[2] for row in by_sign) and values["MAP"][1] == 1
              and all(len({*row}) == 1 for row in by_order)))
END
