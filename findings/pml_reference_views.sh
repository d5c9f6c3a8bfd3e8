#!/usr/bin/env bash
# pytorch-metric-learning 2.9.0: ThresholdConsistentMarginLoss takes ref_emb and never looks at it,
# and a ClassWeightedReducer gives a proxy of ProxyAnchorLoss another class's weight.
#
# Asked about two views, loss(view1, labels, ref_emb=view2, ref_labels=labels), the first loss forms
# its pairs with view2's places but takes both ends of them from view1. The value is the same for any
# view2, view2 gets no gradient, and the pair of an image's own two views has a similarity of 1. If
# view2 has its own order and labels, its places name other images of view1: of view1 itself turned
# round, 16 images, the loss is 1.36, where it is 0.71 of view1 alone, as it should be. Losses that
# cannot take ref_emb raise an error, this one does not.
# ProxyAnchorLoss has one term for each class, of which the reducer looks up the weight as if they
# were images: class i gets the weight of the class of the batch's image i. With a weight of 0 for
# class 3 its proxy is trained as before while the first images of the batch are of other classes,
# and which proxies stand still depends on the order of the batch. (With more classes than images an
# error is raised.)
# Way out: another loss for two views; weights on the images of ProxyAnchorLoss by hand.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="pytorch-metric-learning==2.9.0 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
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
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses, reducers


def margins(x, labels, views, view_labels, above=0.9, below=0.5):
    s = F.normalize(x) @ F.normalize(views).T
    same = labels[:, None] == view_labels
    positives, negatives = s[same & (s <= above)], s[~same & (s >= below)]
    return sum(part.mean().item() for part in (above - positives, negatives - below) if len(part))


torch.manual_seed(0)
labels = torch.arange(8).repeat_interleave(2)
one = 0.7 * torch.randn(8, 8)[labels] + torch.randn(16, 8)
told, gradients = {}, {}
for name, two, labels_two in (
        ("a similar view", one + torch.randn(16, 8), labels), ("noise", torch.randn(16, 8), labels),
        ("its opposite", -one, labels), ("itself in reverse", one.flip(0), labels.flip(0)),
        ("only every other image", one[::2], labels[::2])):
    two.requires_grad_()
    loss = losses.ThresholdConsistentMarginLoss()(
        one.clone().requires_grad_(), labels, ref_emb=two, ref_labels=labels_two)
    loss.backward()
    told[name], gradients[name] = loss.item(), two.grad
    print(f"ThresholdConsistentMarginLoss of a view and {name}: {told[name]:.3f}, by its formula "
          f"{margins(one, labels, two, labels_two):.3f}, gradient of the second view:",
          "none" if two.grad is None else f"{two.grad.abs().max():.2g}")
weights, still = torch.tensor([1., 1, 1, 0]), []
labels = torch.arange(4).repeat_interleave(4)
x = torch.randn(16, 8)
for name, order in (("0 first", torch.arange(16)), ("3 first", torch.arange(16).flip(0)),
                    ("mixed", torch.arange(16).view(4, 4).T.flip(1).flatten())):
    torch.manual_seed(0)
    loss_function = losses.ProxyAnchorLoss(4, 8, reducer=reducers.ClassWeightedReducer(weights))
    loss_function(x[order], labels[order]).backward()
    moved = loss_function.proxies.grad.norm(dim=1)
    still.append([c for c in range(4) if moved[c] == 0])
    print(f"ProxyAnchorLoss, weight 0 for class 3, classes of the batch "
          f"{''.join(map(str, labels[order].tolist()))}: proxies without a gradient: "
          f"{still[-1] or 'none'}")
a, b, c = list(told.values())[:3]
sys.exit(not a == b == c or any(g is not None for g in gradients.values())
         or still[0] != [] or still[1] != [0, 1, 2, 3] or still[2] == [3])
END
