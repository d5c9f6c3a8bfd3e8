"""The command line as a person meets it: what they type, what they read back, the exit status."""
import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch

import jrd
import stress
from conftest import ROOT, each_script, left_in, make_folder
from support import command_line, glyphs, machine

ENV = dict(cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True)
IDLE = """
jrd.py --alpha 0 --kernel mgf | jrd.py --regularizer intra --K 3 | jrd.py --p 5
jrd.py --kernel laplace --K-prime 2 | jrd.py --variant mrd --K-prime 3
mdr.py --lambda 0 --levels 1 2 | mdr.py --fixed-levels --nu 1 | mdr.py --l2norm --eval-l2norm
mdr.py --size 256 | dml_da.py --loss npair --margin 1 | dml_da.py --lambda 0 --regularizer da-
dml_da.py --reg-weight 1 | dml_da.py --regularizer da- --eta 1
dml_da.py --regularizer gor --lambda 1 | eval.py e.npz --dataset cub | eval.py e.npz --query a.png
eval.py last.pt --top 3 | eval.py last.pt --query a.png --ks 1 | eval.py last.pt --to pairs.png
eval.py last.pt --pairs 3 --top 2 | eval.py last.pt --query a.png --pairs 3
eval.py e.npz --pairs 3 | eval.py last.pt --pairs 3 --export e.npz
eval.py last.pt --query a.png --gallery photos --data-root data
common.py check cub --paper jrd | report --out x.md | report --seeds 2 | report --list --out x.md
report --compare a b --weights my.pth | report --annotate --quick"""
MISTAKES = {  # what is typed: what the one line must say
    "jrd.py --alp 1": "unrecognized arguments: --alp 1",
    "jrd.py --alpha -1": "--alpha: '-1' must be a number >= 0",
    "dml_da.py --eta inf": "--eta: 'inf' must be a number",
    "mdr.py --levels 3,0": "'3,0' must be a number", "mdr.py --levels -3,0": "'-3,0' must be a number",
    "mdr.py --val 0": "--val: '0' must be a number > 0 and < 1",     # limits without their ends
    "mdr.py --val 1": "--val: '1' must be a number > 0 and < 1",
    "jrd.py --lr 0": "--lr: '0' must be a number > 0\n",
    "mdr.py --momentum 1": "--momentum: '1' must be a number >= 0 and < 1",
    "dml_da.py --images-per-class 1": "no positive pair",
    "jrd.py --name=../x": "must be letters, digits",
    "jrd.py --backbone resnet51": "no classification model of torchvision",
    "mdr.py --dataset cub --size 300": "--size 300 is larger than --resize 256",
    "jrd.py --device tpu": "--device tpu",
    "mdr.py --device mps:0 --dataset birds": "use --device cpu",        # before anything is read
    "jrd.py --dataset birds": "unknown dataset 'birds'", "mdr.py --dataset=": "unknown dataset ''",
    "jrd.py --dataset {tmp}/singles --val 0.1": "to hold out, and each needs two: ",
    "mdr.py --dataset {tmp}/singles --backbone small": "no training class has two images",
    "mdr.py --batch 4": "is full with one class: raise it, or give a smaller --images-per",
    "dml_da.py --images-per-class 0 --batch 7": "--batch 7 is full with one class",
    "mdr.py --dataset {tmp}/apart": "gallery has none of the test classes, so that every query "
        "would be a miss: class00, class01 are not in it",
    "common.py check {tmp}/no": "common.py: unknown dataset '{tmp}/no': no folder of images, and "
        "none of cub, cub128, cars, sop, inshop, glyphs\n",            # no word of --dataset
    "common.py check {tmp}/apart": "apart: its gallery has none of the test classes",
    "jrd.py --dataset {tmp}/singles --backbone inception_v3 --weights random --resize 64 --size 64":
        "inception_v3 cannot take images of 64 × 64",
    "jrd.py --weights {tmp}/none.pth": "No such file or directory: '{tmp}/none.pth'",
    "dml_da.py --backbone googlenet_bvlc": "needs --weights FILE",
    "jrd.py --lr 1e30 --epochs 1 --batch 9": "the loss of epoch 1/1 is not finite; the first such ",
    "jrd.py --epochs 1 --out {tmp}/file": "cannot write --out {tmp}/file: [Errno 20] Not a dir",
    "jrd.py --backbone small --size 300": "--size does nothing with --backbone small",
    "eval.py {tmp}/none.pt": "cannot read {tmp}/none.pt: No such file",
    "eval.py last.pt --query a.png --to sheet.txt": "must end in .png or .jpg",
    "eval.py {tmp}/singles": "{tmp}/singles: it is a folder; a last.pt in it is meant?",
    "eval.py {tmp}/list.pt": "{tmp}/list.pt does not fit this jrd.py (it is a run of jrd.py",
    "eval.py {tmp}/other.pt": "is not a checkpoint of jrd, mdr, dml_da",
    "eval.py {tmp}/one.NPY": "{tmp}/one.NPY: one array, without labels: np.savez(\"e.npz\", ",
    "eval.py {tmp}/pickled.npz": "{tmp}/pickled.npz: labels are Python objects",
    "eval.py {tmp}/other.npz": "labels is not a file in the archive'; np.savez writes",
    "eval.py {tmp}/short.npz": "must be (n, d)",
    "eval.py {tmp}/short.npz --device tpu": "--device tpu is not supported",
    "eval.py {tmp}/texts.npz": "{tmp}/texts.npz: embeddings are no numbers but",
    "eval.py last.pt --export {tmp}/no/e.npz": "must end in .npz and be in a folder that exists",
    "report --runs {tmp}": "no run with a result.json under",
    "report --paper jrd --table 2c": "there are jrd 1, jrd 2, jrd 3, jrd 4, jrd fig2, jrd fig4",
    "report --plan --dataset glyphs --weights {tmp}/none.pth": "none.pth: no such file",
    "report --curves mdr-glyphs --out curves.pdf": "must end in .png or .svg",
    "report --list --runs none.tar.xz": "--list does nothing with an archive",
}


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Folders and files that something is wrong with."""
    tmp = tmp_path_factory.mktemp("mistakes")
    make_folder(tmp / "singles", [1, 1, 2, 2])
    for part, sizes in {"train": [2, 2], "test": [2, 2], "gallery": [0, 0, 2]}.items():
        make_folder(tmp / "apart" / part, sizes)
    (tmp / "file").write_text("in the way")
    torch.save({"config": {}, "network": {}}, tmp / "other.pt")
    torch.save({"paper": "jrd", "config": [1]}, tmp / "list.pt")
    x = np.zeros((4, 2), np.float32)
    with open(tmp / "one.NPY", "wb") as file:
        np.save(file, x)
    np.savez(tmp / "other.npz", embeddings=x)
    np.savez(tmp / "short.npz", embeddings=x, labels=np.zeros(3, int))
    np.savez(tmp / "texts.npz", embeddings=x.astype(str), labels=np.zeros(4, int))
    np.savez(tmp / "pickled.npz", embeddings=x, labels=np.array([0, 0, 1, None], object))
    return tmp


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_one_line(mistake, material, few_glyphs, tmp_path, typed):
    script, *words = mistake.replace("{tmp}", str(material)).split()
    if script in ("jrd.py", "mdr.py", "dml_da.py") and "--out" not in mistake:
        words += ["--out", tmp_path / "runs"]
    before = sorted(material.rglob("*"))
    status, _, stderr = typed(script, *words)
    assert status == (1 if "--lr 1e30" in mistake else 2)
    assert script in stderr.partition(": ")[0] and stderr.count("\n") == 1
    assert MISTAKES[mistake].format(tmp=material) in stderr
    assert sorted(material.rglob("*")) == before
    assert not (tmp_path / "runs").exists() or "--lr 1e30" in mistake, "half-written"


def test_there_is_nothing_to_check_of_what_the_code_draws(typed):
    assert typed("common.py", "check", "glyphs") == (
        0, "glyphs: drawn by the code, so there are no files to read\n", "")


@pytest.mark.parametrize("script", ["jrd.py", "mdr.py", "dml_da.py", "eval.py", "common.py"])
def test_a_script_says_which_version_it_is(script, typed):
    status, told, stderr = typed(script, "--version")
    assert status == 0 and not stderr and told == (
        f"{script} at commit {machine.commit()}, torch {torch.__version__}, "
        f"Python {sys.version.split()[0]}\n")


@each_script
@pytest.mark.parametrize("dataset", ["", "glyphs", "cub", "sop", "cub128", "photos"])
def test_the_help_has_the_defaults_that_apply_and_the_presets_as_a_table(script, dataset, typed):
    """... in the options' own names; a blank is cub's, the papers' base."""
    words = ["--dataset", dataset] if dataset else []
    status, told, _ = typed(f"{script.__name__}.py", *words, "--help")
    cfg, default = script.parse_args(words), script.parse_args(["--dataset", "cub"])
    options, table = told.split("the papers' base:\n\n")
    assert f"The defaults above are those of --dataset {dataset or 'glyphs'}; " in options
    given = {}
    for option, text in re.findall(r"^  (--[\w-]+) (.*?)(?=^  -|^$)", options, re.M | re.S):
        given[option] = re.findall(r"\(default ([^)]*)\)$", " ".join(text.split()))
    head, *lines = table.splitlines()
    column = head.split().index(dataset or "glyphs") if dataset != "photos" else -1
    starts = [match.start() for match in re.finditer(r"\S+", head)] + [None]
    in_table, differing = {}, set()
    for line in lines:
        cells = [line[a:b].strip() for a, b in zip([0, *starts], starts)]
        in_table[cells[0]] = cells[column + 1 if column >= 0 else -1] or cells[1]
        differing.add(cells[0])
    for name in (script.SETTINGS | command_line.SHARED).keys() - {"ks", "data_root", "dataset"}:
        option, value = command_line.flag_of(name), getattr(cfg, name)
        if value is None:
            assert given[option] in ([], ["1, none for glyphs"]) or "file" in given[option][0]
        elif value is not False and name not in ("margin", "reg_weight"):
            assert given[option] == [command_line.plain(value)], option
        if value != getattr(default, name):
            assert option in differing
        if option in differing:
            assert in_table[option] == ("by size" if value is None else command_line.plain(value))
    assert status == 0 and "{'" not in told and "_':" not in told and "lambda_" not in told


def test_the_help_says_how_many_and_what_an_option_takes(typed):
    for script, wanted in (("report", "--compare RUN RUN"), ("eval.py", "--export FILE"),
                           ("mdr.py", "triplet 0.2, margin 0.2, contrastive 1"),
                           ("dml_da.py", "weight of a rival: en 1, gor 10"),
                           ("jrd.py", "not with small, which sees 32 × 32")):
        assert wanted in " ".join(typed(script, "--help")[1].split()), script
    assert "expected 2 arguments" in typed("report", "--compare", "a")[2]


def test_a_flag_that_does_nothing_is_refused(typed):
    """The last one of each command."""
    for command in re.split(r"[|\n]", IDLE.strip()):
        script, *words = command.split()
        status, _, stderr = typed(script, *words)
        idle = [word for word in words if word.startswith("--")][-1]
        assert status == 2 and stderr.count("\n") == 1, command
        assert re.search(f": {idle} does nothing with", stderr), stderr


def test_what_a_training_says_and_leaves(tmp_path, typed, monkeypatch):
    """... and what eval.py says of its checkpoint and its embeddings."""
    monkeypatch.setitem(glyphs.GLYPHS, "train", (range(400, 410), 5))
    monkeypatch.setitem(glyphs.GLYPHS, "test", (range(450, 460), 20))
    _, told, stderr = typed("jrd.py", "--epochs", 2, "--batch", 25, "--out", tmp_path)
    folder = tmp_path / "jrd-glyphs-batch25-epochs2-s0"
    for part in ("jrd on glyphs · cpu", "train 50 images of 10 classes · test 200 images of 10 "
                 "classes · none of the test classes in train",
                 "backbone small, weights a2d35efeb963",
                 " · 2 epochs, 2 batches per epoch, batch 25, lr 0.0003, tf32\n",
                 f"\ninto {folder}, ", "pretrained backbone",
                 "best on test (", "  seen R@1",
                 "R@1 in ten parts, 95%: [", "d_H by 1-NN, 95%: [", f"run {folder}"):
        assert part in told and not stderr
    table = re.findall(r"^ +(?:epoch|\d/2) .*", told, re.M)
    assert table[0].split() == ["epoch", "loss", "amsoftmax", "jrs", "R@1", "R@2", "R@4", "R@8",
                                "images/s", "left"]
    assert len(table) == 3 and len({*map(len, table)}) == 1, "the rows are aligned"
    assert sorted(p.name for p in folder.glob("[!.]*")) == ["config.json", "last.pt", "log.jsonl",
                                                            "result.json"]
    assert {*left_in(folder)[2]["versions"]} == {
        "python", "torch", "torchvision", "numpy", "pillow"}
    want = re.search(r"^last epoch \(2\) +(.*)", told, re.M)[1].split()
    _, told, _ = typed("eval.py", folder / "last.pt", "--export", tmp_path / "e.npz")
    assert re.search(r"^test +(.*)", told, re.M)[1].split() == want
    with np.load(tmp_path / "e.npz") as file:
        arrays = dict(file)
    arrays["embeddings"] *= np.arange(1, 201)[:, None]      # on the sphere they are what they were
    np.savez(tmp_path / "e.npz", **arrays)
    _, told, _ = typed("eval.py", tmp_path / "e.npz", "--ks", 1, 5, "--l2norm")
    assert "200 embeddings of 10 classes, d = 64" in told and "R@5" in told and want[0] in told


@each_script
def test_a_stopped_run_continues_to_the_same_bits(script, train, monkeypatch):
    """Stopped within the second epoch, it ends as an undisturbed run; each epoch draws its own
    negatives or tuplets."""
    seeds, objective = [], script.objective

    def spy(*args):
        seeds.append(getattr(args[-1], "initial_seed", int)())
        return objective(*args)
    flags = ["--epochs", "3", "--batch", "16"]
    if script is not jrd:
        flags += ["--iterations", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(script, "objective", spy)
        folder = train(script, *flags)[0]
    assert len(set(seeds)) == (1 if script is jrd else 3) and len(seeds) == 9
    whole = folder.rename(folder.with_name("whole"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(script, "objective", Mock(
            wraps=objective, side_effect=[DEFAULT] * 4 + [KeyboardInterrupt]))
        train(script, *flags)
    assert f"continuing {folder} after epoch 1" in train(script, *flags)[1]
    assert stress.state(folder) == stress.state(whole)


@pytest.mark.parametrize("nth", range(5))
def test_a_run_stopped_at_any_of_its_files_gets_them_all(nth, train, monkeypatch):
    """Settings, log, checkpoint, the checkpoint without its optimizer, result."""
    replace = Mock(wraps=os.replace, side_effect=[DEFAULT] * nth + [KeyboardInterrupt])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", replace)
        train(jrd)
    folder = train(jrd)[0]
    assert torch.load(folder / "last.pt", weights_only=True)["optimizer"] is None
    assert left_in(folder)[1]["last epoch"]["epoch"] == 1


def on_photos(tmp_path, script, *words):
    """A command line of a training on sixteen small photos, for a process of its own"""
    photos = make_folder(tmp_path / "photos", [16] * 4)
    return [sys.executable, script, *map(str, (
        "--dataset", photos, "--backbone", "small", "--data-root", tmp_path, "--out",
        tmp_path / "runs", *words))]


def test_an_interrupted_run_says_how_to_continue(tmp_path):
    command = on_photos(tmp_path, "jrd.py", "--epochs", 999, "--workers", 0, "--again")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **ENV)
    while not [*tmp_path.glob("runs/jrd-*/log.jsonl")]:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == -signal.SIGINT and "Traceback" not in stderr, stderr
    assert "keeps its whole epochs; the same command (less --again) continues it" in stderr


def test_an_interrupt_in_a_destructor_is_not_lost(monkeypatch):
    """Python drops what a destructor raises, as tqdm's of a bar, with a note on stderr."""
    class Bar:
        def __del__(self):
            raise error

    def run(args):
        Bar()
        time.sleep(5)
    monkeypatch.setattr(sys, "unraisablehook", dropped := Mock())
    monkeypatch.setattr(command_line, "_end_by", ended := Mock())
    error = KeyboardInterrupt()
    begun = time.perf_counter()
    command_line.main(run, lambda: None)
    ended.assert_called_once_with(signal.SIGINT)
    assert time.perf_counter() - begun < 4, "it does not wake who sleeps"
    command_line.main(lambda args: Bar(), lambda: None)         # ends at once: not after the end
    assert ended.call_count == 2
    dropped.assert_not_called()
    error = ValueError()
    command_line.main(lambda args: Bar(), lambda: None)
    assert dropped.call_args.args[0].exc_value is error
    assert sys.unraisablehook is dropped


def test_a_notebook_lives_on(monkeypatch):
    """Its streams cannot be reconfigured, and a stop ends the run, not the kernel."""
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    monkeypatch.setattr(os, "kill", None)
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(KeyboardInterrupt):
        command_line.main(Mock(side_effect=KeyboardInterrupt), lambda: print("begun"))
    assert out.getvalue() == "begun\n"


def with_small(folder, size, command, after=":"):
    """What happens to a command that sees a file system of this size at folder."""
    def run(script):
        return subprocess.run(["unshare", "-rm", "bash", "-c", script], capture_output=True, **ENV)
    mount = f"mount -t tmpfs -o size={size} none {folder}"
    if not shutil.which("unshare") or run(mount).returncode:
        pytest.skip("not Linux, or no mount without privileges")
    done = run(f"{mount}\n{shlex.join(command)}; status=$?; {after}; exit $status")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    return line


def test_a_full_disk_stops_in_one_line_and_keeps_the_last_epoch(tmp_path):
    """Full at the second checkpoint."""
    command = on_photos(tmp_path, "dml_da.py", "--iterations", 1, "--workers", 0)
    runs = tmp_path / "runs"
    runs.mkdir()
    line = with_small(runs, "3m", command, f"cp -r {runs}/* {tmp_path}")
    assert line.startswith(f"dml_da.py: cannot write {runs}") and "No space left on device" in line
    assert "keeps its whole epochs; the same command (less --again) continues it" in line
    (folder,) = tmp_path.glob("dml_da-*")
    assert not list(folder.glob("*.part"))
    assert len(torch.load(folder / "last.pt", weights_only=True)["history"]) == 1


def test_too_little_shared_memory_for_the_workers_is_one_line(tmp_path):
    line = with_small("/dev/shm", "64k", on_photos(tmp_path, "jrd.py", "--workers", 1))
    assert "/dev/shm" in line and "--workers 0" in line


@pytest.mark.parametrize("error", [
    RuntimeError("DefaultCPUAllocator: can't allocate memory: 9.\nFrame"), MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory.\nGPU 0"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate(handle)"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED")])
def test_what_starves_a_run_is_one_line(error, few_glyphs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jrd, "objective", Mock(side_effect=error))
    with pytest.raises(SystemExit) as stop:
        command_line.main(jrd.train, lambda: jrd.parse_args(["--out", str(tmp_path)]))
    line, = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and "out of memory" in line and "continues a run" in line
    assert ": a training needs less with --workers 0, " in line         # eval.py has no such flag
    assert "--precision bf16" in line and "--batch" in line


def test_a_program_without_a_stdout(monkeypatch):
    """python jrd.py ... >&-"""
    monkeypatch.setattr(sys, "stdout", None)
    command_line.main(lambda args: print("into nothing"), lambda: None)


def test_an_old_python_is_refused_before_anything_is_made(tmp_path):
    shutil.copy(ROOT / "run_all.sh", tmp_path)
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 1\necho "Python 3.9.6"\n')
    python.chmod(0o755)
    done = subprocess.run(["bash", tmp_path / "run_all.sh", "--test"], text=True,
                          env={"PATH": f"{python.parent}:/usr/bin:/bin"}, capture_output=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "Python 3.10 or newer is needed, found Python 3.9.6: " in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["bin", "run_all.sh"]
