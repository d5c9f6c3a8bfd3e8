"""Why two baselines of cub128 are weak (results/cub128, studies/mdr_by_network.md).

    python studies/cub128_baselines.py triplet --weights FILE [--out runs-search]
        R@1 with and without L2 normalization, of pooled features and embeddings, and std / mean of
        the embeddings' norms (cv): before training, and of the runs of mdr.py in --out
    python studies/cub128_baselines.py npair --weights FILE [--out runs-search]
        N-pair with its inner products times 1, 4 and 16, 3 epochs each; the losses are in the logs

Both use the classes of the rate search: 1-80 of CUB train, 81-100 are searched.
"""
import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common  # noqa: E402
import dml_da  # noqa: E402
import mdr  # noqa: E402
from eval import recall_at_k  # noqa: E402
from report.tables import markdown  # noqa: E402
from studies.rate_search import held_out  # noqa: E402


@torch.no_grad()
def triplet(args):
    cfg = mdr.parse_args(["--dataset", "cub128", "--weights", args.weights])
    prefix, _, test_transform = mdr.transforms(cfg)
    data = held_out(cfg.dataset, cfg.data_root, prefix, test_transform)
    torch.manual_seed(0)
    network = mdr.Network(cfg, len(data.train.classes))
    common.load_weights(network.backbone, cfg.backbone, cfg.weights)
    common.to_device(network, cfg).eval()
    rows = [["R@1", "pooled", "L2-normalized", "embedding", "L2-normalized", "cv"]]
    for path in [None, *sorted(Path(args.out).glob("mdr-cub128-*/last.pt"))]:
        if path:
            network.load_state_dict(common.read_checkpoint(path)["network"])
        pooled = common.embed(network.pool, data.test, cfg)
        e = network.embedding(pooled)
        recalls = [recall_at_k(x, data.test.labels, [1])[1]
                   for x in (pooled, F.normalize(pooled), e, F.normalize(e))]
        norms = e.norm(dim=1)
        rows.append([path.parent.name if path else "pretrained",
                     *(f"{100 * recall:.1f}" for recall in recalls),
                     f"{norms.std() / norms.mean():.2f}"])
    print(*markdown(rows), sep="\n")


def npair(args):
    """Train with n_pair_loss(√k f), whose inner products are k f·f."""
    loss, common.load_dataset = dml_da.n_pair_loss, held_out
    for factor in (1, 4, 16):
        dml_da.n_pair_loss = lambda f, *rest: loss(factor ** 0.5 * f, *rest)
        common.main(dml_da.train, lambda: dml_da.parse_args(
            ["--dataset", "cub128", "--weights", args.weights, "--loss", "npair", "--lambda", "0",
             "--epochs", "3", "--name", f"times{factor}", "--out", args.out]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser("studies/cub128_baselines.py", allow_abbrev=False)
    parser.add_argument("what", choices=["triplet", "npair"])
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", default="runs-search")
    arguments = parser.parse_args()
    {"triplet": triplet, "npair": npair}[arguments.what](arguments)
