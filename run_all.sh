#!/usr/bin/env bash
# Set-up, every experiment of the three papers, the report.
#   bash run_all.sh                    every table and figure but t-SNE, on CUB, Cars, SOP, In-Shop
#   bash run_all.sh --dataset glyphs   the same in miniature, on the embedded dataset (or: cub, ...)
#   bash run_all.sh --dataset cub128   the same on CUB at 128 × 128
#   bash run_all.sh --quick            the three methods and their baselines in miniature: minutes
#   bash run_all.sh --test             the test suite
#   --list                             only print the commands, one per line: for xargs, SLURM, ...
#                                      and for several GPUs (docs/running.md)
#   --plan                             only print what there is to do
#   --backbone NAME                    of every run, with --paper: googlenet_bvlc is DML-DA's own
#   --jobs N                           N runs at a time; each gets its share of the cores
# Everything else goes to `python -m report`, which says what it takes: --paper jrd|mdr|dml_da,
# --table 2a, --seeds N, --weights FILE, --precision fp32, --runs DIR.  Paths are as seen from here.
# With its --compare, --curves, --sheet, --pairs, --sort or --annotate nothing trains: run_all.sh
# only calls it.
# Makes .venv and installs what is missing, unless PYTHON is set or an environment is active, of
# venv or of conda (but its base).
# The plan comes first.  A finished run is skipped, a broken one continued, a failed one reported at
# the end.  Exit status: 0, 1 if a run failed or a dataset is missing (--plan: 3), 2 for a wrong
# argument.
set -euo pipefail
unset CDPATH                                    # with which cd prints, and may go elsewhere
cd "$(dirname "$0")"
[ -w "${TMPDIR:-/tmp}" ] || unset TMPDIR        # a folder that this node does not have

fail() { echo "run_all.sh: $*" >&2; exit 2; }

mode="" jobs="" quick="" select=() out=()
while [ $# -gt 0 ]; do
    case $1 in
        --test|--list) mode=${1#--} ;;
        --jobs|--jobs=*)
            jobs=${1#--jobs=}
            [ "$1" != --jobs ] || { jobs=${2:-}; shift; }
            [[ $jobs =~ ^[1-9][0-9]*$ ]] || fail "--jobs needs a whole number above 0" ;;
        --out) [ $# -gt 1 ] || fail "--out needs a folder"
               out=(--out "$2"); shift ;;
        --out=*) out=("$1") ;;
        -h|--help) sed -n '2,/^set/s/^# \{0,1\}//p' run_all.sh; exit ;;
        *) select+=("$1")
           [ "$1" != --quick ] || quick=1
           [[ ! $1 =~ ^--(plan|compare|curves|sheet|pairs|sort|annotate|version)(=|$) ]] ||
               mode=${mode:-report} ;;
    esac
    shift
done
if [ -n "$mode" ]; then
    select+=(${out[@]+"${out[@]}"})             # without a mode, of the report at the end
elif [[ " ${select[*]-} " = *.xz" "* ]]; then
    fail "an archive of runs takes no new ones: python -m report reports it"
fi
[ -n "$quick" ] || [ "$mode" = report ] ||
    select=(--dataset real ${select[@]+"${select[@]}"})     # a later --dataset wins

active=${VIRTUAL_ENV:-}
[ "${CONDA_DEFAULT_ENV:-base}" = base ] || active=${CONDA_PREFIX:-}
if [ -z "${PYTHON:-}" ] && [ -z "$active" ]; then
    if [ ! -x .venv/bin/pip ]; then
        version=$(python3 --version 2> /dev/null) || version="no python3"
        python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null ||
            fail "Python 3.10 or newer is needed, found $version: make .venv with another one" \
                "(python3.12 -m venv .venv) and call again"
        echo "making .venv" >&2
        python3 -m venv .venv
    fi
    PYTHON=$PWD/.venv/bin/python
    stamp=.venv/installed                       # a copy of what was installed last
    if ! cat requirements.txt report/requirements.txt | cmp -s - "$stamp"; then
        echo "installing requirements (a few minutes the first time: the default torch wheels are" \
             "large)" >&2
        # Python compiles what it imports; pip would compile all of torch.
        "$PYTHON" -m pip install -q --no-compile --disable-pip-version-check -r requirements.txt >&2
        if "$PYTHON" -m pip install -q --disable-pip-version-check -r report/requirements.txt >&2; then
            cat requirements.txt report/requirements.txt > "$stamp"
        else
            echo "report/requirements.txt failed: figures will be skipped" >&2
        fi
    fi
fi
export PYTHON=${PYTHON:-python}

if [ "$mode" = test ]; then
    OMP_NUM_THREADS=1 exec "$PYTHON" -m pytest -q -n 2 tests
fi

if [ "$mode" = report ]; then
    exec "$PYTHON" -m report "${select[@]}"
fi

if [ "$mode" = list ]; then
    commands=$("$PYTHON" -m report --list "${select[@]}")
    while read -r _ words; do printf '%q %s\n' "$PYTHON" "$words"; done <<< "$commands"
    exit
fi

# The plan goes to the terminal, the commands left come back; status 3: a dataset is missing.
status=0
left=$("$PYTHON" -m report --plan "${select[@]}") || status=$?
case $status in
    0) ;;
    3) status=1 ;;
    *) exit "$status" ;;
esac

cores=$(env -u OMP_NUM_THREADS nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)     # a job's share
export jobs=${jobs:-$([ -n "$quick" ] && [ "$cores" -gt 1 ] && echo 2 || echo 1)} main=$$
export failed ended total start
failed=$(mktemp) ended=$(mktemp) total=$(grep -c . <<< "$left" || true) start=$(date +%s)
export MALLOC_TRIM_THRESHOLD_=1000000000000 MALLOC_MMAP_MAX_=0     # glibc keeps what is freed
if [ "$jobs" != 1 ]; then                       # DML_CORES: for the workers that read photos
    export DML_CORES=$((cores > jobs ? cores / jobs : 1))
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$DML_CORES}
fi

one() {                                         # one command; with others beside it, its last lines
    kill -0 "$main" 2> /dev/null || exit 255    # run_all.sh was killed: xargs starts no more
    if [ "$jobs" = 1 ]; then
        echo; echo "== $*"
        "$PYTHON" "${@:2}" || echo "$*" >> "$failed"
    elif output=$("$PYTHON" "${@:2}" 2>&1); then
        printf '%s\n' "== $*" "$(grep '^last epoch' <<< "$output")"
    else
        printf '%s\n' "== $*" "$(tail -n 3 <<< "$output")"
        echo "$*" >> "$failed"
    fi
    echo "$*" >> "$ended"
    n=$(grep -c . "$ended")
    echo "-- $n of $total, about $(( (($(date +%s) - start) * (total - n) / n + 59) / 60 )) minutes left"
}
export -f one

if [ -n "$left" ]; then
    set -m                                      # a process group of its own, to stop it as one
    xargs -L 1 -P "$jobs" bash -c 'one "$@"' one <<< "$left" &
    stop() {
        set +m                                  # so that bash does not report its end
        { kill -"$1" -- -$!; wait; } 2> /dev/null
        rm -f "$failed" "$ended"
        echo "run_all.sh: stopped; call again to continue" >&2
        trap - "$1"
        kill -"$1" $$
    }
    trap 'stop INT' INT
    trap 'stop TERM' TERM HUP
    wait $! || status=1
    set +m
    trap - INT TERM HUP
fi

echo
"$PYTHON" -m report "${select[@]}" ${out[@]+"${out[@]}"} || status=1
if [ -s "$failed" ]; then
    sed 's/^/failed: /' "$failed" >&2
    status=1
fi
rm -f "$failed" "$ended"
exit "$status"
