#!/usr/bin/env bash
# torchmetrics 1.9.0: RetrievalMAP(top_k=k) forgets the relevant items that were not found, so that
# another hit can lower it.
#
# MAP@k divides the precisions at the hits by the number of relevant items (trec_eval), or by k if
# that is less (MAP@R). RetrievalMAP cuts the list at k and divides by the hits in it. So one
# relevant item of ten in the first place, and nothing more, is a perfect 1.0, as all ten are; with
# a second hit in place 3 it is 0.83. In a search for the best network the one that finds one sure
# image of a class beats the one that finds nearly all. Without top_k it is right, and so are the
# package's NDCG and recall with top_k. Its documentation does not define the cut; PyTorch
# Geometric has an open issue (9989) on the difference to its own measure.
# Way out: top_k=None on whole rankings, or pytrec_eval's map_cut.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="torchmetrics==1.9.0 pytrec_eval-terrier==0.5.11 torch==2.14.1 torchvision==0.29.1
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
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import sys

import pytrec_eval
import torch
from torchmetrics.retrieval import RetrievalMAP, RetrievalNormalizedDCG, RetrievalRecall

scores = torch.linspace(1, 0.5, 100)                    # of 100 items, of which 10 are relevant
run = {"q": {str(i): float(100 - i) for i in range(100)}}
told = []
for found in ([1], [1, 3], [1, 3, 5], [2, *range(4, 11)], [1, *range(3, 11)], [*range(1, 11)]):
    relevant = torch.zeros(100, dtype=torch.long)
    places = found + [100 - i for i in range(10 - len(found))]          # the others are last
    relevant[torch.tensor(places) - 1] = 1
    values = [metric(top_k=k)(scores, relevant, indexes=torch.zeros(100, dtype=torch.long)).item()
              for metric, k in ((RetrievalMAP, 10), (RetrievalMAP, None),
                                (RetrievalNormalizedDCG, 10), (RetrievalRecall, 10))]
    judged = {"q": {str(place - 1): 1 for place in places}}
    trec = pytrec_eval.RelevanceEvaluator(judged, {"map_cut"}).evaluate(run)["q"]["map_cut_10"]
    told.append((*values, trec))
    print(f"hits in places {found}: MAP@10 {values[0]:.2f}, pytrec_eval {trec:.2f}; MAP without "
          f"top_k {values[1]:.2f}, NDCG@10 {values[2]:.2f}, recall@10 {values[3]:.2f}")
cut, whole, ndcg, recall, trec = zip(*told)
sys.exit(not (cut[0] == cut[5] == 1 and all(cut[i] < cut[0] for i in range(1, 5))
              and cut[3] < cut[2] < cut[1] and trec[0] < 0.11 and trec[0] < trec[1] < trec[2]
              and trec[2] < trec[3] < trec[4] < trec[5] and recall[0] < 0.11 and ndcg[0] < 0.25
              and whole[0] < whole[1] < whole[2] < whole[3] < whole[4] < whole[5]))
END
