#!/usr/bin/env bash
# continuum 1.2.7: its measures of continual learning leave out the task that was learned just before
# the last one, and forward transfer is measured on past tasks.
#
# After two tasks, of which the first is forgotten altogether, Logger.forgetting and
# backward_transfer are 0 and remembering is 1; by the formulas of the papers that it names they
# are 1, -1 and 0. After three tasks, each forgotten as the next is learned, they are 0.50, -0.33
# and 0.67, after five 0.75, -0.60 and 0.40 instead of the same 1, -1 and 0: the task before the
# last is never looked at, but it is counted. The error is the larger the fewer the tasks.
# forward_transfer is the mean accuracy on past tasks: a network that knows all past tasks and
# none of the future has 1.00, one that forgets all and has the future right 0.00.
# Two more in it:
# get_balanced_sampler(log=True), which is to balance more gently, does not balance at all in each
# task but the first: of classes 10 and 11 with 900 and 100 images the small one is 10% of the
# draws, as classes 0 and 1 it is 15%. The labels of earlier tasks have a count of 0 and so an
# infinite share of the sum of all weights.
# split_train_val loses the transform of the labels: a task set of labels 0 to 9 whose target_trsf
# makes 10 to 19 of them gives 0 to 9 once it is split.
# Way out: the formulas as below; counts of one's own; setting target_trsf again after the split.
#
# The modules for its data sets (h5py, skimage, sklearn, imagehash, datasets, requests, pandas,
# soundfile) are replaced by empty ones: nothing here uses them.
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="scipy==1.17.1 matplotlib==3.11.2 six==1.17.0 torch==2.14.1 torchvision==0.29.1
    numpy==2.4.6"
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
venv/bin/pip install -q --disable-pip-version-check --no-deps continuum==1.2.7 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys
from unittest.mock import MagicMock

import numpy as np
import torch
import torchvision

for name in ("h5py", "skimage", "skimage.transform", "skimage.segmentation", "imagehash",
             "datasets", "requests", "pandas", "sklearn", "sklearn.model_selection",
             "sklearn.metrics", "sklearn.cluster", "sklearn.decomposition",
             "datasets.arrow_dataset", "soundfile"):
    sys.modules[name] = MagicMock()
from continuum.metrics import Logger
from continuum.tasks import TaskSet, get_balanced_sampler, split_train_val


def logged(accuracies):                          # row: after which task; column: on which task
    logger = Logger(list_subsets=["test"])
    for after, row in enumerate(accuracies):
        if after:
            logger.end_task()
        for task, accuracy in enumerate(row):
            right = np.arange(100) < round(100 * accuracy)
            logger.add([np.where(right, task, -1), np.full(100, task), np.full(100, task)],
                       subset="test")
    return logger


def papers(r):                                   # Chaudhry et al.; Diaz-Rodriguez et al.
    n = len(r)
    forgetting = np.mean([r[j:n - 1, j].max() - r[n - 1, j] for j in range(n - 1)])
    below, above = np.tril_indices(n, -1), np.triu_indices(n, 1)
    backward = np.mean([r[i, j] - r[j, j] for i, j in zip(*below)])
    return forgetting, backward, 1 - abs(min(backward, 0)), r[above].mean()


told = {}
for name, n, make in (("each forgotten as the next is learned", 2, np.eye),
                      ("each forgotten as the next is learned", 3, np.eye),
                      ("each forgotten as the next is learned", 5, np.eye),
                      ("knows all past tasks, no future one", 5, np.tril),
                      ("forgets all, knows the future", 5, np.triu)):
    r = make(n) if make is np.eye else make(np.ones((n, n)))
    logger = logged(r)
    got = (logger.forgetting, logger.backward_transfer, logger.remembering,
           logger.forward_transfer)
    told[name, n] = got, papers(r)
    print(f"{n} tasks, {name}: forgetting, backward transfer, remembering, forward transfer "
          + ", ".join(f"{x:.2f}" for x in got) + " (by the papers "
          + ", ".join(f"{x:.2f}" for x in papers(r)) + ")")
torch.manual_seed(0)
share = {}
for first in (0, 10):
    for log in (False, True):
        y = np.repeat([first, first + 1], [900, 100])
        task = TaskSet(np.zeros((1000, 2, 2, 3), np.uint8), y, np.zeros(1000, int), None)
        drawn = y[list(get_balanced_sampler(task, log=log, num_samples=10000))]
        share[first, log] = (drawn == first + 1).mean()
        print(f"classes {first} and {first + 1} of 900 and 100 images, log={log}: the small one "
              f"is {share[first, log]:.1%} of the draws")

y = np.tile(np.arange(10), 20)
task = TaskSet(np.zeros((200, 2, 2, 3), np.uint8), y, np.zeros(200, int), None,
               target_trsf=lambda label: label + 10)
before = sorted({int(task[i][1]) for i in range(200)})
after = [sorted({int(part[i][1]) for i in range(len(part))}) for part in split_train_val(task)]
print(f"labels {before[0]} to {before[-1]} before split_train_val, after it {after[0][0]} to "
      f"{after[0][-1]} and {after[1][0]} to {after[1][-1]}")
eye = {n: told["each forgotten as the next is learned", n] for n in (2, 3, 5)}
past, future = (told[name, 5] for name in ("knows all past tasks, no future one",
                                           "forgets all, knows the future"))
sys.exit(not (
    all(np.allclose(right[:3], (1, -1, 0)) for _, right in eye.values())
    and np.allclose(eye[2][0][:3], (0, 0, 1)) and np.allclose(eye[3][0][:3], (1 / 2, -1 / 3, 2 / 3))
    and np.allclose(eye[5][0][:3], (3 / 4, -3 / 5, 2 / 5))
    and np.allclose((past[0][3], past[1][3], future[0][3], future[1][3]), (1, 0, 0, 1))
    and all(abs(share[first, False] - 0.5) < 0.03 for first in (0, 10))
    and abs(share[10, True] - 0.1) < 0.02 and share[0, True] > 0.13
    and before == list(range(10, 20)) and after[0] == list(range(10))
    and set(after[1]) <= set(range(10))))
END
