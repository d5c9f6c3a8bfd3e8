#!/usr/bin/env bash
# torchvision 0.29.1, create_feature_extractor: a layer's features depend on what else is asked for.
#
# It returns the tensors that the network made, not copies, and the ReLUs of torchvision's networks
# work in place. So a batch norm's output comes back with all negative values at 0, if the ReLU
# behind it still runs. It runs if a later layer is asked for too; if not, the graph is cut off
# before it and the features are right. In ResNet-18 layer1.0.bn1 alone has about half of its values
# below 0, and none if layer4 is asked for with it; VGG's and DenseNet's batch norms likewise. So a
# table of Recall@K by layer, or a distillation that compares layers of two networks, may be of other
# values than its names say. Forward hooks that keep an output have the same fault.
# Way out: .clone() in a hook, or set module.inplace = False for every ReLU before the extraction.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
venv/bin/python - <<'END'
import sys

import torch
from torchvision import models
from torchvision.models.feature_extraction import create_feature_extractor

torch.manual_seed(0)
images, as_described = torch.randn(2, 3, 64, 64), []
for name, layer, later in (("resnet18", "layer1.0.bn1", "layer4"),
                           ("vgg11_bn", "features.1", "features.28"),
                           ("densenet121", "features.norm0", "features.norm5")):
    network, shares = models.get_model(name, weights=None).eval(), {}
    for text, layers in (("alone", [layer]), (f"with {later}", [layer, later])):
        with torch.no_grad():
            features = create_feature_extractor(network, layers)(images)[layer]
        shares[text] = (features < 0).float().mean().item()
    for module in network.modules():
        if isinstance(module, torch.nn.ReLU):
            module.inplace = False
    with torch.no_grad():
        features = create_feature_extractor(network, [layer, later])(images)[layer]
    shares["with both, no ReLU in place"] = (features < 0).float().mean().item()
    print(f"{name}, {layer}, share of values below 0:",
          *(f"{text} {share:.2f}" for text, share in shares.items()), sep="  ")
    alone, both, mended = shares.values()
    as_described.append(alone == mended > 0.3 and both == 0)
sys.exit(not all(as_described))
END
