#!/usr/bin/env bash
# Set-up, experiments, report.
#   bash run_all.sh --quick            JRD and AMSoftmax on the embedded dataset, and the table
#   bash run_all.sh --quick --seeds 5  the same over five seeds
#   bash run_all.sh --test             the test suite
# Makes .venv and installs what is missing, unless a virtual environment is active or PYTHON is set.
# A finished run is skipped, a broken one continued, a failed one reported at the end (status 1).
set -euo pipefail
cd "$(dirname "$0")"

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }
fail() { echo "run_all.sh: $1" >&2; exit 2; }

mode="" seeds=2
while [ $# -gt 0 ]; do
    case $1 in
        --quick|--test) mode=${1#--} ;;
        --seeds) [ $# -gt 1 ] && [[ $2 =~ ^[1-9][0-9]*$ ]] || fail "--seeds needs a whole number above 0"
                 seeds=$2; shift ;;
        -h|--help) usage; exit ;;
        *) fail "unknown argument '$1' (choose from --quick, --seeds N, --test)" ;;
    esac
    shift
done
[ -n "$mode" ] || fail "choose --quick or --test (the tables on the real datasets are not built yet)"

if [ -z "${PYTHON:-}" ] && [ -z "${VIRTUAL_ENV:-}" ]; then
    [ -x .venv/bin/python ] || { echo "making .venv"; python3 -m venv .venv; }
    PYTHON=$PWD/.venv/bin/python
    stamp=.venv/installed                       # a copy of what was installed last
    if ! cat requirements*.txt | cmp -s - "$stamp"; then
        echo "installing requirements (a few minutes the first time: the default torch wheels are large)"
        "$PYTHON" -m pip install --quiet --disable-pip-version-check -r requirements.txt
        "$PYTHON" -m pip install --quiet --disable-pip-version-check -r requirements-figures.txt ||
            echo "without requirements-figures.txt: figures will be skipped"
        cat requirements*.txt > "$stamp"
    fi
fi
PYTHON=${PYTHON:-python}

if [ "$mode" = test ]; then
    exec "$PYTHON" -m pytest -q tests
fi

failed=()
for ((seed = 0; seed < seeds; seed++)); do
    for command in "jrd.py" "jrd.py --alpha 0"; do
        echo; echo "== python $command --seed $seed"
        # shellcheck disable=SC2086
        "$PYTHON" $command --seed "$seed" || failed+=("python $command --seed $seed")
    done
done
echo
"$PYTHON" report.py
if [ ${#failed[@]} -gt 0 ]; then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
