#!/usr/bin/env bash
# safetensors 0.8.0: safetensors.numpy.save_file saves transposed or sliced arrays as other values,
# without an error; 0.7.0 saves them rightly.
#
# 0.8.0 writes an array's memory in the order in which it lies, under the shape of the view. So a
# transposed array, some columns of an array, and one in Fortran's order (as scikit-learn's PCA and
# a transposed embedding are) come back with the right shape and type and with wrong values. Who
# brings weights from TensorFlow to PyTorch meets it: kernels are transposed from (h, w, in, out) to
# (out, in, h, w), and the network loads without complaint. safetensors.torch refuses such tensors.
# Reported: github.com/safetensors/safetensors/issues/825. Way out: numpy.ascontiguousarray.
#
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
cat > saved.py <<'END'
"""Print for each kind of array if what is loaded is what was saved."""
import numpy as np
from safetensors.numpy import load_file, save_file

kernel = np.arange(3 * 3 * 2 * 4, dtype=np.float32).reshape(3, 3, 2, 4)
features = np.arange(24, dtype=np.float32).reshape(4, 6)
arrays = {"kernel_for_torch": kernel.transpose(3, 2, 0, 1), "some_columns": features[:, :3],
          "every_second_row": features[::2], "fortran": np.asfortranarray(features),
          "some_rows": features[1:], "copied": np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))}
save_file(arrays, "arrays.safetensors")
loaded = load_file("arrays.safetensors")
print(*(f"{name}={'same' if (loaded[name] == array).all() else 'other'}"
        for name, array in arrays.items()))
END
for version in 0.7.0 0.8.0; do
    "${PYTHON:-python3}" -m venv "venv-$version" || exit 2
    "venv-$version/bin/pip" install -q --disable-pip-version-check "safetensors==$version" \
        numpy==2.4.6 || exit 2
    "venv-$version/bin/python" saved.py > "$version" || exit 2
    echo "$version: $(cat "$version")"
done
names="kernel_for_torch some_columns every_second_row fortran some_rows copied"
[ "$(cat 0.7.0)" = "$(printf '%s=same ' $names | sed 's/ $//')" ] &&
    [ "$(cat 0.8.0)" = "kernel_for_torch=other some_columns=other every_second_row=other\
 fortran=other some_rows=same copied=same" ]
