#!/usr/bin/env bash
# datasets 5.2.0 (Hugging Face), class_encode_column: integer labels get other numbers, in the order
# of their texts: 0, 1, 10, 11, 2.
#
# Of twelve classes, 10 becomes 2 and 2 becomes 4; of ten or fewer none changes. train_test_split with
# stratify_by_column asks for such a column, after which numbers no longer fit a list of names,
# saved proxies or a classifier, or those of a part that was not encoded; nothing warns, since the
# numbers are valid. Way out: cast_column("label", ClassLabel(num_classes=C)).
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="datasets==5.2.0"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/python - <<'END'
import os
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=tempfile.mkdtemp(dir="."))
import datasets

datasets.disable_progress_bars()
labels = [*range(12)] * 2
rows = datasets.Dataset.from_dict({"label": labels})
encoded = rows.class_encode_column("label")
cast = rows.cast_column("label", datasets.ClassLabel(num_classes=12))
print("labels             ", labels[:12])
print("class_encode_column", encoded["label"][:12], encoded.features["label"].names)
print("cast_column        ", cast["label"][:12])
try:
    rows.train_test_split(0.5, stratify_by_column="label")
    asked = False
except ValueError as error:
    print("train_test_split of plain integers:", error)
    asked = "ClassLabel" in str(error)
sys.exit(encoded["label"][:12] != [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3]
         or cast["label"][:12] != labels[:12] or not asked)
END
