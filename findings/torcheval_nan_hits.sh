#!/usr/bin/env bash
# torcheval 0.0.7: a network whose scores are NaN, or all equal, has a hit rate of 1.
#
# hit_rate and reciprocal_rank count the items with a score above that of the right one. Of equal
# scores none is above, so a collapsed network is right at every query, where chance would give 1 of
# 100; and nothing is above NaN, so a network that diverged is perfect too. multiclass_accuracy does
# so for k = 2, not for k = 1, which takes the first maximum.
# Way out: refuse scores that are not finite, and count the other items that score at least as high
# as the right one.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="torcheval==0.0.7 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
venv/bin/python -W ignore - <<'END'
import sys

import torch
from torcheval.metrics.functional import hit_rate, multiclass_accuracy, reciprocal_rank

torch.manual_seed(0)
right, told = torch.randint(100, (500,)), {}
for name, scores in (("random", torch.randn(500, 100)), ("equal", torch.zeros(500, 100)),
                     ("NaN", torch.full((500, 100), torch.nan))):
    told[name] = (hit_rate(scores, right, k=1).mean().item(),
                  reciprocal_rank(scores, right).mean().item(),
                  multiclass_accuracy(scores, right, k=1).item(),
                  multiclass_accuracy(scores, right, k=2).item())
    print("100 items, {} scores: hit rate {:.2f}, reciprocal rank {:.2f}, accuracy {:.2f}, among "
          "two {:.2f}".format(name, *told[name]))
sys.exit(told["equal"][:2] != (1, 1) or told["NaN"][:2] != (1, 1) or told["equal"][3] != 1
         or told["NaN"][3] != 1
         or told["random"][0] > 0.05)
END
