"""What the code trusts a library to do, where a result or a promise hangs on it."""
import io
import tarfile

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
import torchvision

import mdr
from support import backbones, runs


def test_a_seed_sequence_ignores_zeros_at_its_end():
    """common.random_seed says so; each epoch and image has a stream of its own else."""
    seeds = [int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
             for key in ((3, 5), (3, 5, 0), (3, 5, 1), (0, 3, 5))]
    assert seeds[0] == seeds[1] and len({*seeds}) == 3


def test_adam_leaves_alone_what_has_no_gradient():
    """dml_da.py: no step, no momentum; a gradient of 0 would move it.  Its betas are the paper's."""
    absent, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    adam = torch.optim.Adam([absent, other], lr=0.1)
    assert adam.defaults["betas"] == (0.9, 0.999)
    (absent + other).sum().backward()
    adam.step()
    adam.zero_grad()
    before = absent.item()
    other.sum().backward()
    adam.step()
    assert absent.item() == before and adam.state[absent]["step"] == 1
    absent.grad = torch.zeros(1)
    adam.step()
    assert absent.item() != before


def test_convolutions_bring_images_to_their_layout():
    """channels_last, as backbones.to_device says"""
    layout = torch.channels_last
    convolution = torch.nn.Conv2d(3, 8, 3).to(memory_format=layout)
    x = torch.randn(2, 3, 9, 9)
    assert not x.is_contiguous(memory_format=layout)
    assert convolution(x).is_contiguous(memory_format=layout)


def test_the_switches_of_precision():
    """TF32: PyTorch has it for a GPU's convolutions and not for products.  bfloat16: what
    command_line.settle asks."""
    assert torch.backends.cuda.matmul.allow_tf32 is False
    assert isinstance(torch.cpu._is_avx512_bf16_supported(), bool)
    if not torch.cuda.is_available():
        assert not torch.cuda.is_bf16_supported(including_emulation=False)


def test_a_killed_loader_lets_go_before_the_lock_is_given_up():
    assert torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL < runs.LOCK_WAIT


def test_float32_exp_ends_above_88():
    """jrd.py, U8"""
    assert torch.tensor([88.0, 89.0]).exp().isfinite().tolist() == [True, False]


def test_version_2_of_torchvisions_weights_is_the_stronger():
    """... which is why backbones takes version 1, as in the papers' time."""
    pairs = 0
    for name in torchvision.models.list_models(module=torchvision.models):
        shares = {}
        for weights in torchvision.models.get_model_weights(name):
            shares[weights.name] = weights.meta["_metrics"]["ImageNet-1K"]["acc@1"]
        if "IMAGENET1K_V2" in shares:
            assert shares["IMAGENET1K_V2"] > shares["IMAGENET1K_V1"], name
            pairs += 1
    assert pairs > 20


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_transform_input_is_what_the_published_weights_come_with(name, monkeypatch):
    """... and what a model without them lacks, so that the same tensors are another network."""
    plain = torchvision.models.get_model(name, weights=None, init_weights=False)
    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict",
                        lambda *args, **kwargs: plain.state_dict())
    published = torchvision.models.get_model(name, weights="IMAGENET1K_V1")
    assert published.transform_input and not plain.transform_input
    assert backbones.torchvision_backbone(name).transform_input


def test_tarfile_takes_damage_in_the_middle_for_the_end():
    """... so that report/records.py decompresses an archive, with its check sums, first."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in "ab":
            member = tarfile.TarInfo(name)
            member.size = 600
            archive.addfile(member, io.BytesIO(bytes(600)))
    damaged = bytearray(content.getvalue())
    damaged[1536:2048] = b"\7" * 512                    # the second member's header
    assert tarfile.open(fileobj=io.BytesIO(damaged)).getnames() == ["a"]


def test_a_wrapped_model_must_be_told_of_targets_that_a_batch_leaves_out():
    """docs/extending.md: DistributedDataParallel, of one process here"""
    class Targets(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.alpha = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(1)) for _ in "abc")

        def forward(self, classes):
            return torch.cat([self.alpha[c] for c in classes]).sum()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)
    try:
        for told in (True, False):
            model = torch.nn.parallel.DistributedDataParallel(Targets(),
                                                              find_unused_parameters=told)
            model([0, 1]).backward()
            if told:
                assert model.module.alpha[2].grad is None       # so Adam leaves it alone
                model([1, 2])
            else:
                with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
                    model([1, 2])
    finally:
        torch.distributed.destroy_process_group()


def test_mdr_within_activation_checkpointing_is_computed_twice():
    """docs/extending.md: its running statistics move twice, so the gradient is another one."""
    gradients, moved = [], []
    for within in (False, True):
        torch.manual_seed(0)
        levels, e = mdr.MDR(), torch.randn(8, 4, requires_grad=True)
        levels(mdr.pairwise_distances(2 * torch.randn(8, 4)))           # statistics to move

        def loss(e):
            return levels(mdr.unit_mean(mdr.pairwise_distances(e)))
        if within:
            value = torch.utils.checkpoint.checkpoint(loss, e, use_reentrant=False)
        else:
            value = loss(e)
        before = {name: buffer.clone() for name, buffer in levels.state_dict().items()}
        value.backward()
        gradients.append(e.grad)
        moved.append(any(not torch.equal(buffer, before[name])
                         for name, buffer in levels.state_dict().items()))
    assert moved == [False, True] and not torch.allclose(*gradients)
