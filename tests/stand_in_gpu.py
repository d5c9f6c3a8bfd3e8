"""All three scripts and eval.py on a GPU that is none: what forgets a device, without a GPU.

    python tests/stand_in_gpu.py        a few minutes; needs Linux, gcc and torch's CUDA wheels

A tensor here says that it lies on cuda:0 and computes on the CPU.  An operation on tensors of both
is an error, as on a GPU.  Not tested: kernels, speed, memory, cuDNN, pinned memory, CUDA's own
random numbers.  libraries() stands in for what torch 2.14.1 asks of CUDA's runtime and driver.
"""
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed.tensor                         # as long as torch.Generator is a class
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]
import dml_da
import eval
import jrd
import mdr
from support import glyphs

RUNTIME = """
    GetDevice(int* d) {*d = 0}                      SetDevice(int d) {}
    GetDeviceCount(int* n) {*n = 1}                 GetLastError(void) {}
    PeekAtLastError(void) {}                        DeviceSynchronize(void) {}
    DeviceGetStreamPriorityRange(int* a, int* b) {*a = 0; *b = -1}
    StreamCreateWithPriority(void** s) {static long n; *s = (void*) (n += 16)}
    StreamQuery(void* s) {}                         StreamSynchronize(void* s) {}
    StreamWaitEvent(void* s) {}                     StreamIsCapturing(void* s, int* c) {*c = 0}
    EventCreateWithFlags(void** e) {*e = (void*) 16}
    EventRecord(void* e) {}                         EventRecordWithFlags(void* e) {}
    EventQuery(void* e) {}                          EventSynchronize(void* e) {}
    EventDestroy(void* e) {}"""
MOVES = ("to", "_to_copy", "copy_", "_local_scalar_dense", "set_")      # from device to device
FLAGS = [
    (jrd, ""), (jrd, "--precision bf16"), (jrd, "--variant jrd-pooling"), (jrd, "--kernel laplace"),
    (jrd, "--kernel mgf"), (jrd, "--kernel polynomial"), (mdr, ""),
    # At the preset's rate, weights that differ by 3e-8 draw other negatives in the eighth batch.
    (mdr, "--loss margin --lr 1e-5"), (mdr, "--loss margin --seed 1"),
    (mdr, "--loss contrastive --l2norm --val 0.3"), (mdr, "--precision fp32 --fixed-levels"),
    (dml_da, ""), (dml_da, "--loss npair"), (dml_da, "--loss triplet --regularizer da-"),
    (dml_da, "--regularizer en"), (dml_da, "--regularizer gor --precision bf16")]


# ---------------------------------------------------------------------------- a tensor
class OnGPU(torch.Tensor):
    """What `inner`, a tensor on the CPU, is on cuda:0"""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device="cuda:0")

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Indexing and tolist() are C++ that no dispatch sees."""
        x = args[0]
        if function is torch.Tensor.tolist:
            return x.cpu().tolist()
        if function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and (
                isinstance(x, OnGPU)):
            x, indices = views(x, args[1])
            if function is torch.Tensor.__getitem__:
                return torch.ops.aten.index(x, indices) if indices else x
            value = torch.as_tensor(args[2], dtype=x.dtype, device=x.device)
            return torch.ops.aten.index_put_(x, indices, value) if indices else x.copy_(value)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return dispatched(function, args, kwargs or {})


def views(x, key):
    """x[key] by the numbers, slices, None and ... in key; the tensors in it, by dimension"""
    def takes(part):                                    # how many dimensions
        if torch.is_tensor(part) and part.dtype == torch.bool:
            return part.dim()
        return int(part is not None and part is not Ellipsis)
    key = [torch.tensor(part) if isinstance(part, list) else part
           for part in (key if isinstance(key, tuple) else (key,))]
    dim, indices, rest = 0, {}, x.dim() - sum(map(takes, key))
    for part in key:
        if part is None:
            x = x.unsqueeze(dim)
            dim += 1
        elif part is Ellipsis:
            dim += rest
        elif isinstance(part, slice):
            x = torch.ops.aten.slice(x, dim, part.start, part.stop, part.step or 1)
            dim += 1
        elif torch.is_tensor(part) and (part.dim() or part.dtype == torch.bool):
            indices[dim] = part
            dim += takes(part)
        else:
            x = x.select(dim, int(part))
    return x, [indices.get(d) for d in range(max(indices, default=-1) + 1)]


def dispatched(function, args, kwargs):
    """An operation of torch, by the CPU.  RuntimeError: its tensors lie on two devices."""
    name = function.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
    on_gpu = [isinstance(tensor, OnGPU) for tensor in tensors]
    gpu = any(on_gpu)
    for tensor, here in zip(tensors, on_gpu):           # a number may lie anywhere, an index too
        if gpu and not here and tensor.dim() and name not in MOVES and "index" not in name:
            raise RuntimeError(f"{function}: tensors on cuda:0 and on the CPU")
    if "index" in name and tensors and gpu and not on_gpu[0]:
        raise RuntimeError(f"{function}: a tensor on the CPU, indexed from cuda:0")
    if name == "_local_scalar_dense":
        gpu = False
    devices = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.device)]
    if devices:
        gpu = devices[0].type == "cuda"
        args, kwargs = tree_map_only(torch.device, lambda device: torch.device("cpu"),
                                     (args, kwargs))
    kwargs.pop("pin_memory", None)
    inner_args, inner_kwargs = tree_map_only(OnGPU, lambda tensor: tensor.inner, (args, kwargs))
    result = function(*inner_args, **inner_kwargs)
    if name == "copy_":
        return args[0]
    if gpu:
        result = tree_map_only(torch.Tensor, OnGPU, result)
    if name in ("to", "_to_copy"):
        same = gpu and isinstance(args[0], OnGPU) and result.inner is args[0].inner
        return args[0] if same else result
    return return_and_correct_aliasing(function, args, kwargs, result) if gpu else result


class Everything(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return dispatched(function, args, kwargs or {})


@contextlib.contextmanager
def stand_in_gpu():
    generator, pretended = torch.Generator, {
        "_lazy_init": lambda: None, "is_available": lambda: True, "device_count": lambda: 1,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_name": lambda device=None: "a stand-in", "set_device": lambda device: None,
        "get_device_capability": lambda device=None: (9, 0),
        "synchronize": lambda device=None: None, "mem_get_info": lambda device: (2**33, 2**34)}
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.backends.cudnn.enabled = False
    with patch.multiple(torch.cuda, **pretended), (
            patch.object(torch, "Generator", lambda device="cpu": generator())), (
            patch.object(torch.Tensor, "pin_memory", lambda self, device=None: self)), Everything():
        yield


# ---------------------------------------------------------------------------- what must work
def scripts(out):
    """... train to the losses that they have on the CPU, but for the optimizer's rounding."""
    glyphs.GLYPHS.update(train=(range(400, 410), 4), test=(range(450, 454), 20))
    for script, flags in FLAGS:
        losses = []
        for device, where in (("cpu", contextlib.nullcontext()), ("cuda", stand_in_gpu())):
            to = tempfile.mkdtemp(dir=out)
            words = f"--device {device} --out {to} --epochs 1 --workers 0 {flags}".split()
            with contextlib.redirect_stdout(None), where:
                script.train(script.parse_args(words))
            (log,) = Path(to).glob("*/log.jsonl")
            losses.append(json.loads(log.read_text())["loss"])
        print(f"{script.__name__}.py {flags}: loss {losses[0]:.6f}, {losses[1]:.6f}", flush=True)
        assert abs(losses[1] / losses[0] - 1) < (1e-3 if "bf16" in flags else 1e-5)


def searches():
    """... give what they give on the CPU."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(600, 32, generator=draw), torch.arange(600) % 40
    x += torch.randn(40, 32, generator=draw)[y]
    for points in (x, x.round(), x[torch.arange(600) % 300]):
        seen = {"train_plain": (points[:200] + 1, 100 + y[:200])}
        for embedded in ({"test": (points, y)}, {"test": (points[:90], y[:90]), "gallery": (x, y)},
                         {"test": (points, y), **seen}):
            want = eval.judge(embedded, [1, 8, 100])
            with stand_in_gpu():
                for labels_too in (True, False):
                    there = {name: (a.to("cuda"), b.to("cuda") if labels_too else b)
                             for name, (a, b) in embedded.items()}
                    assert eval.judge(there, [1, 8, 100]) == want
                assert eval.nmi_by_start(points.to("cuda"), y.to("cuda"), 1) == (
                    [eval.nmi(eval.kmeans(points, 40, 0), y)])
            print(f"eval.judge {[*embedded]}: {want['R@1']:.3f}")


def libraries(folder):
    """CUDA's runtime, preloaded, and its driver, both of which answer that all is well"""
    runtime = re.sub(r"(\w+\([^)]*\)) {(.*?)}", r"int cuda\1 {\2; return 0;}\n", RUNTIME)
    driver = "int cuDevicePrimaryCtxGetState(int d, unsigned* f, int* a) {*a = 1; return 0;}\n"
    symbols = set()
    for library in Path(torch.__file__).parent.glob("lib/lib*cuda*.so"):
        symbols |= {name.decode() for name in re.findall(rb"\0(cu[A-Z]\w+)(?=\0)",
                                                         library.read_bytes())}
    for name in sorted(symbols - {"cuDevicePrimaryCtxGetState"}):
        driver += f"int {name}(void) {{return 0;}}\n"
    for name, code in (("runtime.so", runtime), ("libcuda.so.1", driver)):
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", f"{folder}/{name}"],
                       input=code, text=True, check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if "STAND_IN" not in os.environ:
            libraries(folder)
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=os.environ | {
                "STAND_IN": "1", "LD_PRELOAD": f"{folder}/runtime.so",
                "LD_LIBRARY_PATH": folder}).returncode)
        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        searches()
        scripts(folder)
        print("no operation had tensors on two devices")
