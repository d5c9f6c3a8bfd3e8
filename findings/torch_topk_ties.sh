#!/usr/bin/env bash
# torch 2.14.1 on a CPU: of equal values topk gives neither the first nor a random choice, and
# which it gives depends on how many there are.
#
# A collapsed or quantized embedding makes rows of equal distances. If the gallery is sorted by
# class, as data sets are, the neighbours that topk takes come from one place of it: of 100 equal
# values topk(3) gives 67, 66, 65, of 1,000 the first three; topk(1) gives the eleventh of 17 and
# the first of 100; argmax always gives the first. So Recall@K of an embedding that knows nothing
# depends on the call and on the size of the gallery.
# Way out: count ties against the query, or shuffle the gallery.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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

seen = {}
for n in (17, 100, 1000):
    x = torch.ones(n)
    seen[n] = x.topk(3).indices.tolist(), x.topk(1).indices.tolist(), x.argmax().item()
    print(f"{n} equal values: topk(3) {seen[n][0]}, topk(1) {seen[n][1]}, argmax {seen[n][2]}")
sys.exit(not (seen[17][0] == [10, 12, 11] and seen[100][0] == [67, 66, 65]
              and seen[1000][0] == [0, 1, 2] and {n[2] for n in seen.values()} == {0}
              and seen[17][1] == [10] and seen[100][1] == [0]))
END
