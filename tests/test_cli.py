"""The command line as a person meets it: what they type, what they read back, the exit status."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import common
import jrd
from conftest import ROOT, left_in, make_folder

ENV = dict(cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True)


def python(*arguments):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, **ENV)


# ---------------------------------------------------------------------------- mistakes
MISTAKES = {  # what is typed: what the one line must say
    "jrd.py --dataset birds": "unknown dataset 'birds'",
    "jrd.py --alpha -1": "--alpha: -1 must be >= 0",
    "jrd.py --weights {tmp}/none.pth": "no weights file",
    "jrd.py --weights jrd.py": "cannot load jrd.py",
    "jrd.py --dataset {tmp}/empty": "has no sub-folders",
    "jrd.py --dataset {tmp}/lonely": "class03 has one image",
    "jrd.py --dataset {tmp}/three": "has 3 sub-folders",
    "jrd.py --dataset {tmp}/broken --weights random": "class01/0.png",
    "jrd.py --dataset {tmp}/broken --val 0.1": "--val 0.1 of 2 training classes leaves fewer",
    "jrd.py --dataset {tmp}/broken --val 0.9": "--val 0.9 of 2 training classes leaves fewer",
    "mdr.py --dataset {tmp}/singles": "no training class has two images (2 images of 2 classes)",
    "mdr.py --batch 4": "--batch 4 is full with one class: raise it, or lower --images-per-class",
    "jrd.py --dataset {tmp}/singles --backbone vit_b_16 --weights random --resize 64 --size 64":
        "vit_b_16 cannot take images of 64 × 64",
    "jrd.py --device tpu": "--device tpu",
    "mdr.py --device mps:0 --dataset birds":                    # refused before anything is read
        "--device mps:0 is not supported: nothing here was ever run on it; use --device cpu",
    "dml_da.py --device meta --dataset birds": "--device meta is not supported",
    "jrd.py --alpha 0 --kernel mgf": "--kernel does nothing with --alpha 0",
    "jrd.py --regularizer intra --K 3": "--K does nothing with --regularizer intra",
    "jrd.py --kernel laplace --K-prime 2": "--K-prime does nothing with --kernel laplace",
    "jrd.py --p 5": "--p does nothing with --kernel gaussian",
    "jrd.py --variant mrd --K-prime 3": "--K-prime does nothing with --variant mrd",
    "jrd.py --alp 1": "unrecognized arguments: --alp 1",
    "jrd.py --lr 1e30 --epochs 1": "the loss is not finite at epoch 1, step 2: loss",
    "mdr.py --lr 1e30 --epochs 1": "the loss is not finite at epoch 1, step 2: loss",
    "jrd.py --K 101": "--K: 101 must be >= 1 and <= 100",
    "jrd.py --epochs 1 --out {tmp}/file": "cannot write",
    f"jrd.py --seed {'9' * 400}": "must be >= 0 and <= 2147483648",
    "jrd.py --lr 0": "--lr: 0 must be > 0",
    "jrd.py --batch 1": "--batch: 1 must be >= 2",
    "mdr.py --levels -3,0,3": "'-3,0,3' is not a number",
    "mdr.py --images-per-class 1": "--images-per-class: 1 must be >= 2",
    "dml_da.py --images-per-class 1": "--images-per-class: 1 leaves no positive pair",
    "eval.py {tmp}/other.npz --dataset cub": "--dataset does nothing with an .npz",
    "eval.py {tmp}/other.npz --export {tmp}/e.npz": "--export does nothing with an .npz",
    "eval.py {tmp}/other.npz --export {tmp}/no/e.npz": "cannot be written: it is a folder",
    "eval.py {tmp}/empty": "is a folder: a last.pt in it is meant?",
    "eval.py {tmp}/one.npz": "it holds one array",
    "eval.py {tmp}/list.pt": "is not a checkpoint of jrd, mdr, dml_da",
    "common.py prepare {tmp}/empty": "has no sub-folders",
    "common.py prepare birds": "unknown dataset 'birds'",
    "report --out x.md": "--out does nothing without --dataset, --paper, --table or --quick",
    "report --seeds 2": "--seeds does nothing without --dataset",
    "report --list --out x.md": "--out does nothing with --list",
    "report --compare a b --weights {tmp}/one.npz": "--weights does nothing with --compare",
    "report --sheet last.pt --runs {tmp}": "--runs does nothing with --sheet",
    "report --annotate --quick": "--quick does nothing with --annotate",
    "report --list --plan": "not allowed with",
    "report --plan --dataset glyphs --weights {tmp}/none.pth": "none.pth: no such file",
    "jrd.py --name=../x": "'../x' must be letters, digits",
    "mdr.py --lambda 0 --levels 1 2": "--levels does nothing with --lambda 0",
    "mdr.py --fixed-levels --nu 1": "--nu does nothing with --fixed-levels",
    "mdr.py --size 256": "--size does nothing with --backbone small",
    "eval.py README.md": "it is damaged, or no file of tensors",
    "mdr.py --dataset cub --size 300": "--size 300 is larger than --resize 256",
    "jrd.py --backbone resnet51": "no classification model of torchvision",
    "mdr.py --dataset cars --data-root {tmp}/empty": "no cars under",
    "dml_da.py --backbone googlenet_bvlc": "googlenet_bvlc needs --weights FILE",
    "dml_da.py --loss npair --margin 1": "--margin does nothing with --loss npair",
    "dml_da.py --reg-weight 1": "--reg-weight does nothing with --regularizer da",
    "dml_da.py --regularizer da- --eta 1": "--eta does nothing with --regularizer da-",
    "dml_da.py --regularizer gor --lambda 1": "--lambda does nothing with --regularizer gor",
    "dml_da.py --lambda 0 --regularizer da-": "--regularizer does nothing with --lambda 0",
    "dml_da.py --eta inf": "--eta: inf must be",
    "dml_da.py --head-lr-mult 0": "--head-lr-mult: 0 must be > 0",
    "eval.py {tmp}/nothing.pt": "no file",
    "eval.py {tmp}/lonely.npz": "No such file",
    "eval.py {tmp}/broken.npz": "cannot read",
    "eval.py {tmp}/pickled.npz": "cannot read",
    "eval.py {tmp}/other.npz": "lacks the arrays labels",
    "eval.py {tmp}/short.npz": "must be (n, d)",
    "eval.py {tmp}/strings.npz": "labels must be whole numbers or texts",
    "report --runs {tmp}": "no finished run",
    "report --table 9": "nothing to run for --table 9 on the papers' datasets: there are jrd 1",
    "report --paper dml": "invalid choice: 'dml'",
    "report --dataset birds": "invalid choice",
    "report --seeds 0": "must be >= 1",
    "report --paper jrd --table 2c": "there are jrd 1, jrd 2, jrd 3, jrd 4, jrd fig2, jrd fig4",
    "report --quick --table 2c": "nothing to run for --table 2c on glyphs: there are jrd 1",
    "report --sheet nothing.pt": "no file nothing.pt",
    "report --curves mdr-glyphs --runs nowhere": "no run mdr-glyphs under nowhere: there are none",
    "report --curves mdr-glyphs --out curves.pdf": "--out curves.pdf must end in .png or .svg",
    "report --list --runs none.tar.xz": "an archive is read; runs are trained in a folder",
    "report --runs none.tar.xz": "cannot read the archive none.tar.xz: [Errno 2] No such file",
    "report --runs runs none": "cannot read the archive runs: ",
    "report --curves": "--curves: expected at least one argument",
    "common.py pretend": "choose from",
}


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Folders and files that something is wrong with."""
    tmp = tmp_path_factory.mktemp("mistakes")
    make_folder(tmp / "lonely", [2, 2, 2, 1])
    make_folder(tmp / "singles", [1, 1, 2, 2])
    make_folder(tmp / "three", [2, 2, 2])
    (make_folder(tmp / "broken", [2, 2, 2, 2]) / "class01" / "0.png").write_bytes(b"\x89PNG")
    (tmp / "empty").mkdir()
    (tmp / "file").write_text("in the way")
    (tmp / "broken.npz").write_bytes(b"PK\x03\x04 not really")
    torch.save({"paper": "jrd", "config": [1]}, tmp / "list.pt")
    x = np.zeros((4, 2), np.float32)
    with open(tmp / "one.npz", "wb") as file:
        np.save(file, x)
    np.savez(tmp / "other.npz", embeddings=x)
    np.savez(tmp / "short.npz", embeddings=x, labels=np.zeros(3, int))
    np.savez(tmp / "strings.npz", embeddings=x, labels=np.array([True, True, False, False]))
    np.savez(tmp / "pickled.npz", embeddings=x, labels=np.array([0, 0, 1, None], object))
    return tmp


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_one_line(mistake, material, tmp_path, typed):
    script, *words = mistake.replace("{tmp}", str(material)).split()
    if script in ("jrd.py", "mdr.py", "dml_da.py") and "--out" not in mistake:
        words += ["--out", tmp_path / "runs"]
    before = sorted(material.rglob("*"))
    status, _, stderr = typed(script, *words)
    assert status == (1 if "--lr 1e30" in mistake else 2)
    assert script in stderr.partition(": ")[0] and stderr.count("\n") == 1
    assert MISTAKES[mistake] in stderr
    assert sorted(material.rglob("*")) == before
    assert not (tmp_path / "runs").exists() or "--lr 1e30" in mistake, "half-written"


# ---------------------------------------------------------------------------- a training, told
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return out, python("jrd.py", "--epochs", "4", "--out", out)


def test_what_a_training_says_and_leaves(trained):
    out, done = trained
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == ""
    assert lines[0].startswith("jrd on glyphs · cpu")
    assert lines[1] == ("train 750 images of 50 classes · test 2,000 images of 100 classes, none "
                        "of them in train")
    assert lines[2].startswith("backbone small, weights a2d35efeb963")
    assert lines[3] == "settings: the preset, but epochs 4 · 4 epochs, batch 100, lr 0.0003"
    assert lines[4].split() == ["epoch", "loss", "amsoftmax", "jrs", "R@1", "R@2", "R@4", "R@8",
                                "images/s", "left"]
    assert [line.split()[0] for line in lines[5:9]] == ["1/4", "2/4", "3/4", "4/4"]
    assert len({len(line) for line in lines[4:9]}) == 1, "the rows are aligned"
    for row in ("pretrained backbone", "last epoch (4)", "best on test (epoch",
                "chosen on the test set", "  seen R@1", "in ten stratified parts",
                "1-NN estimates", f"run {out}/jrd-glyphs"):
        assert row in done.stdout
    folder = out / "jrd-glyphs-epochs4-s0"
    assert sorted(p.name for p in folder.glob("[!.]*")) == ["config.json", "last.pt", "log.jsonl",
                                                            "result.json"]
    log, result, config = left_in(folder)
    assert [row["epoch"] for row in log] == [1, 2, 3, 4]
    assert {"loss", "amsoftmax", "jrs", "lr", "R@1", "R@8", "seconds", "images/s"} <= {*log[0]}
    last = result["last epoch"]
    assert last["R@1"] == log[-1]["R@1"] and 0 < last["MAP@R"] < last["R@1"] < last["seen R@1"] < 1
    assert config["alpha"] == 1 and config["versions"].keys() == {"python", "torch", "torchvision",
                                                                  "numpy"}


def test_eval_of_a_checkpoint_and_of_its_embeddings(trained, typed, tmp_path):
    out, done = trained
    want = re.search(r"^last epoch \(4\) +(.*)", done.stdout, re.M)[1].split()
    path = out / "jrd-glyphs-epochs4-s0" / "last.pt"
    _, told, _ = typed("eval.py", path, "--export", tmp_path / "e.npz")
    assert re.search(r"^test +(.*)", told, re.M)[1].split() == want
    _, told, _ = typed("eval.py", tmp_path / "e.npz", "--ks", 1, 5, "--l2norm")
    assert "2,000 embeddings of 100 classes, d = 64" in told and "R@5" in told and want[0] in told


def test_a_stopped_run_continues_to_the_same_bits(trained, tmp_path):
    """Stopped after an epoch three times, in three ways: the weights of an undisturbed run."""
    out, _ = trained
    command = ["jrd.py", "--epochs", "4", "--out", str(tmp_path)]
    folder = tmp_path / "jrd-glyphs-epochs4-s0"

    def epochs():
        log = folder / "log.jsonl"
        return len(log.read_text().splitlines()) if log.exists() else 0
    for end in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        before = epochs()
        process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, **ENV)
        while epochs() == before:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(end)
        _, stderr = process.communicate()
        assert process.returncode == -end and not (folder / "result.json").exists()
        assert "Traceback" not in stderr
        if end == signal.SIGINT:
            assert "its last whole epoch; to continue: python jrd.py --epochs 4" in stderr
    again = python(*command)
    assert again.returncode == 0 and f"continuing {folder} after epoch" in again.stdout
    paths = out / folder.name, folder
    figures, same_figures = (left_in(path)[1] | {"seconds": 0} for path in paths)
    want, got = (torch.load(path / "last.pt", weights_only=True)["network"] for path in paths)
    assert figures == same_figures and all(torch.equal(want[k], got[k]) for k in want)


def with_small(folder, size, commands):
    """What happens to shell commands that see a file system of this size at folder."""
    def run(script):
        return subprocess.run(["unshare", "-rm", "bash", "-c", script], capture_output=True, **ENV)
    mount = f"mount -t tmpfs -o size={size} none {folder}"
    if not shutil.which("unshare") or run(mount).returncode:
        pytest.skip("not Linux, or no mount without privileges")
    return run(f"{mount}\n{commands}")


@pytest.mark.parametrize("script, size, epochs", [("jrd.py", "100k", 0), ("mdr.py", "900k", 0),
                                                  ("dml_da.py", "3m", 1)])
def test_a_full_disk_stops_in_one_line_and_keeps_the_last_epoch(script, size, epochs, tmp_path):
    """Full at the first checkpoint, or at the second; with space the same command goes on."""
    photos, runs = make_folder(tmp_path / "photos", [3] * 4, side=36), tmp_path / "runs"
    runs.mkdir()
    command = (f"{sys.executable} {script} --dataset {photos} --backbone small --epochs 3 "
               f"--workers 0 --data-root {tmp_path} --out {runs}")
    done = with_small(runs, size, f"{command}; echo status $?\n"
                      f"mount -o remount,size=50m {runs}; {command}")
    (line,) = done.stderr.splitlines()
    assert f"No space left on device: '{runs}" in line and line.startswith(script)
    assert f"keeps its last whole epoch; to continue: python {script} --dataset" in line
    assert "status 2" in done.stdout and "last epoch (3)" in done.stdout and done.returncode == 0
    assert (f"after epoch {epochs}" in done.stdout) == bool(epochs)


def test_too_little_shared_memory_for_the_workers_is_one_line(tmp_path):
    folder = make_folder(tmp_path / "photos", [8] * 4, side=300)
    done = with_small("/dev/shm", "1m", f"{sys.executable} jrd.py --dataset {folder} --backbone "
                      "squeezenet1_1 --weights random --epochs 1 --workers 1 --data-root "
                      f"{tmp_path} --out {tmp_path}/runs")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "/dev/shm" in done.stderr and "--workers 0" in done.stderr


@pytest.mark.parametrize("error, says", [
    (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
     ["the same command continues the run"]),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9.\nFrame"),
     ["the same command continues the run"]),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 ..."),
     ["out of GPU memory with --batch 100: --precision bf16", "CUDA out of memory. Tried"])])
def test_what_starves_a_run_is_one_line(error, says, few_glyphs, tmp_path, monkeypatch, capsys):
    """In a training, and outside one."""
    def starved(*args):
        raise error
    monkeypatch.setattr(jrd, "objective", starved)
    for function, message in ((jrd.train, says[0]), (starved, says[-1])):
        with pytest.raises(SystemExit) as stop:
            common.main(function, lambda: jrd.parse_args(["--out", str(tmp_path)]))
        err = capsys.readouterr().err
        assert stop.value.code == 2 and message in err


def test_an_old_python_is_refused_before_anything_is_made(tmp_path):
    shutil.copy(ROOT / "run_all.sh", tmp_path)
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    for text, version in (('echo "Python 3.9.6"', "Python 3.9.6"), ("exit 127", "no python3")):
        python.write_text(f'#!/bin/sh\n[ "$1" = --version ] || exit 1\n{text}\n')
        python.chmod(0o755)
        done = subprocess.run(["bash", tmp_path / "run_all.sh", "--test"], text=True,
                              env={"PATH": f"{python.parent}:/usr/bin:/bin"}, capture_output=True)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
        assert f"Python 3.10 or newer is needed, found {version}: " in done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "run_all.sh"]
