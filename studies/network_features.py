"""What MDR finds before its first step, on three networks: python studies/network_features.py

    python studies/network_features.py squeezenet1_1=FILE resnet18=FILE googlenet_bvlc=FILE
Each network's embeddings of cub128's training images, as mdr.py sees them with seed 0.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # noqa: E402

import common  # noqa: E402
import mdr  # noqa: E402
from report.tables import markdown  # noqa: E402
from support import command_line  # noqa: E402
from support.files import UserError  # noqa: E402


def main(words):
    """words: name=weights file of each network"""
    if not words or not all("=" in word for word in words):
        raise UserError("networks are named as NAME=FILE of weights")
    rows = [["network", "std / mean of the norms", "positive pairs, in σ"]]
    for word in words:
        name, file = word.split("=", 1)
        cfg = mdr.parse_args(["--dataset", "cub128", "--backbone", name, "--weights", file,
                              "--precision", "fp32"])
        common.settle(cfg)
        data = common.load_dataset(cfg.dataset, cfg.data_root, *mdr.transforms(cfg)[::2])
        torch.manual_seed(cfg.seed)
        network = mdr.Network(cfg, len(data.train.classes)).eval()
        common.load_weights(network.backbone, name, file)
        e = common.embed(network.embed, data.train_plain.images, cfg)           # (n, D)
        norm, d = e.norm(dim=1), mdr.pairwise_distances(e)
        positive, pairs = d[mdr.is_positive(data.train_plain.labels)], mdr.off_diagonal(d)
        rows.append([name, f"{norm.std() / norm.mean():.2f}",
                     f"{(positive.mean() - pairs.mean()) / pairs.std():.2f}"])
    print(markdown(rows))


if __name__ == "__main__":
    command_line.main(main, lambda: sys.argv[1:])
