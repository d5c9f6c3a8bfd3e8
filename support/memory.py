"""How much memory a training step of a network needs, counted without computing anything."""
import copy

import torch


def step_bytes(backbone, batch, size, precision="fp32"):
    """Bytes that a forward pass of (batch, 3, size, size) keeps for the backward pass.

    Each stored tensor counts once, parameters (which Adam has beside it three times more) do not.
    The network runs on PyTorch's meta device, where tensors have shapes but no values; with bf16
    it is in bfloat16 altogether, a little less than autocast keeps.
    """
    network = copy.deepcopy(backbone).to("meta")
    images = torch.empty(batch, 3, size, size, device="meta", requires_grad=True)
    if precision == "bf16":
        network, images = network.bfloat16(), images.bfloat16()
    own = {id(p) for p in network.parameters()}
    kept = {}

    def keep(tensor):
        if id(tensor) not in own:
            kept[id(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        tensors.append(tensor)              # alive, so that no other gets its place
        return tensor

    tensors = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(images)
    return sum(kept.values())
