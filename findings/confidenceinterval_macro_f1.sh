#!/usr/bin/env bash
# confidenceinterval 1.0.5: the 95% interval of a macro F1 score has the wrong width.
#
# Of two classes with F1 = 0.95 the interval of f1_score(average="macro"), by default after a paper
# of Takahashi and others, is three times too wide, of 8 classes about right, and with more classes
# too narrow: of 100 test sets of 5,000 images in 100 classes it holds the true F1 for 38%, where
# the paper's formula does for 91%. So with many classes equal methods easily differ, and with two
# a real difference is hidden. The binary F1's interval, which classification_report_with_ci gives
# for each class, is 40% too wide if 90% of the images are positive. The scores are right.
# Cause, by reading takahashi_methods.py: the macro variance adds two factors that the paper
# multiplies, divides by b[i] + b[j] where it has their product, and divides by the number of images
# once too often; in the binary one, as in macro precision and recall, p * p.transpose() of a vector
# is no matrix but its squares.
# Way out: method="bootstrap_percentile", or the formula below.
#
# Its metadata asks for setuptools 68, which it does not import: it is installed without it.
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="scikit-learn==1.9.1 statsmodels==0.14.6 pandas==3.1.1 scipy==1.17.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/pip install -q --disable-pip-version-check --no-deps confidenceinterval==1.0.5 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import numpy as np
from confidenceinterval import f1_score
from sklearn.metrics import confusion_matrix
from sklearn.metrics import f1_score as plain


def paper(labels, predicted):
    """The macro F1 and its 95% interval by Takahashi et al. 2022."""
    p = confusion_matrix(labels, predicted) / len(labels)
    own, both = np.diag(p), p.sum(0) + p.sum(1)
    f1 = 2 * own / both
    alone = f1 * (both - 2 * own) / both ** 2 * ((both - 2 * own) / both + f1 / 2)
    pairs = p * np.outer(f1 / both, f1 / both)
    variance = 2 * (alone.sum() + pairs.sum() - np.trace(pairs)) / len(f1) ** 2 / len(labels)
    half = 1.96 * variance ** 0.5
    return f1.mean(), (f1.mean() - half, f1.mean() + half)


def draw(random, n, share, right):
    labels = random.choice(len(share), n, p=share)
    other = random.choice(len(share), n, p=share)
    return labels, np.where(random.random(n) < right, labels, other)


told = {}
for classes, n, right in ((2, 1000, 0.9), (8, 1000, 0.8), (20, 1000, 0.7), (100, 5000, 0.7)):
    random = np.random.default_rng(0)
    share = np.full(classes, 1 / classes)
    true = plain(*draw(random, 1_000_000, share, right), average="macro")
    sets = [draw(random, n, share, right) for _ in range(100)]
    spread = np.std([plain(*one, average="macro") for one in sets])
    row = [true, 2 * 1.96 * spread]
    for interval in (lambda a, b: f1_score(a, b, average="macro"), paper):
        answers = [interval(*one)[1] for one in sets]
        row += [np.mean([high - low for low, high in answers]),
                np.mean([low <= true <= high for low, high in answers])]
    told[classes] = row
    print(f"{classes} classes, {n} images, F1 {row[0]:.3f}: 95% of the test sets' scores lie "
          f"within {row[1]:.3f}, the interval is {row[2]:.3f} wide and holds F1 for {row[3]:.0%} "
          f"of 100 test sets; the paper's is {row[4]:.3f} wide and does for {row[5]:.0%}")
random = np.random.default_rng(0)
true = plain(*draw(random, 1_000_000, [0.1, 0.9], 0.75))
sets = [draw(random, 1000, [0.1, 0.9], 0.75) for _ in range(200)]
spread = 2 * 1.96 * np.std([plain(*one) for one in sets])
width = np.mean([np.diff(f1_score(*one, average="binary")[1]) for one in sets])
print(f"binary, 90% positive, F1 {true:.3f}: 95% of the test sets' scores lie within {spread:.3f}, "
      f"the interval is {width:.3f} wide")
sys.exit(not (told[2][2] > 2.5 * told[2][1] and told[100][3] < 0.6 and width > 1.4 * spread
              and all(row[5] > 0.88 for row in told.values())))
END
