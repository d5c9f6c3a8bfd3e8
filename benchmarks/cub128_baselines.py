"""Why some settings of cub128 do not do what their papers say (docs/cub128.md, its notes).

    python benchmarks/cub128_baselines.py triplet --weights FILE [--out runs-search]
        R@1 with the embeddings as they are and l2-normalized: the pretrained network's pooled
        features, the same through an embedding layer as it starts, and after the search's runs
    python benchmarks/cub128_baselines.py npair --weights FILE [--factors 1 4 16]
        N-pair with its inner products times a factor, 3 epochs at the preset's rate each
    python benchmarks/cub128_baselines.py mdr --weights FILE --runs RUN ... [--out runs]
        what L_MDR does beside the triplet loss: the lengths of their gradients by the embeddings
        and the cosine between them, before training and after each RUN (a folder in --out)

As in the search of learning rates, classes 1-80 of CUB train and R@1 is measured among the images
of classes 81-100; no image of a test class is embedded.  The runs of `mdr` train on 1-100.
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
from benchmarks.search import held_out  # noqa: E402
from eval import recall_at_k  # noqa: E402
from support.images import augmented  # noqa: E402


def start_of_mdr(args, load):
    """What mdr.py has before its first step -> settings, Data, augmentation, network for eval."""
    cfg = mdr.parse_args(["--dataset", "cub128", "--weights", args.weights])
    prefix, augment, test_transform = mdr.transforms(cfg)
    data = load(cfg.dataset, cfg.data_root, prefix, test_transform)
    torch.manual_seed(0)
    network = mdr.Network(cfg, len(data.train.classes))
    common.load_weights(network.backbone, cfg.backbone, cfg.weights)
    common.to_device(network, cfg)
    return cfg, data, augment, network.eval()


@torch.no_grad()
def triplet(args):
    """A line for the start and one for each checkpoint of Triplet and Triplet + L2Norm."""
    cfg, data, _, network = start_of_mdr(args, held_out)
    print("| | pooled | l2-normalized | embedding | l2-normalized | ‖e‖, mean | std / mean |")
    print("|---" * 7 + "|")
    runs = sorted(Path(args.out).glob("mdr-cub128-*lambda0*/last.pt"))
    for path in [None, *runs]:
        if path:
            network.load_state_dict(torch.load(path, weights_only=True,
                                               map_location="cpu")["network"])
        pooled = common.embed(network.pool, data.test, cfg)
        e = network.embedding(pooled)
        cells = [f"{100 * recall_at_k(x, data.test.labels, [1])[1]:.1f}"
                 for x in (pooled, F.normalize(pooled), e, F.normalize(e))]
        norm = e.norm(dim=1)
        cells += [f"{norm.mean():.1f}", f"{norm.std() / norm.mean():.2f}"]
        print(f"| {path.parent.name if path else 'pretrained'} | {' | '.join(cells)} |")


def npair(args):
    """Train with n_pair_loss(√k f), whose inner products are k f·f; the first epoch's figures are
    in each run's log."""
    loss, common.load_dataset = dml_da.n_pair_loss, held_out
    for factor in args.factors:
        dml_da.n_pair_loss = lambda f, *rest: loss(factor ** 0.5 * f, *rest)
        common.main(dml_da.train, lambda: dml_da.parse_args(
            ["--dataset", "cub128", "--weights", args.weights, "--loss", "npair", "--lambda", "0",
             "--epochs", "3", "--name", f"times{factor:g}", "--out", args.out]))


def gradients(args):
    """A line for the start and one for each run: means over ten batches of training images."""
    cfg, data, augment, network = start_of_mdr(args, common.load_dataset)
    batches = mdr.batches(data.train.labels, cfg, 0)[:10]
    print("| | L_triplet | L_MDR | its gradient's length | λ L_MDR's | cosine |")
    print("|---" * 6 + "|")
    for name in [None, *args.runs]:
        state = name and torch.load(Path(args.out, name, "last.pt"), weights_only=True)
        if state:
            network.load_state_dict(state["network"])
        figures = []
        for number, batch in enumerate(batches):
            labels = data.train.labels[batch]
            images = torch.stack([augmented(data.train.images[i], augment, 0, i) for i in batch])
            regularizer = mdr.MDR()             # its statistics are the batch's, its levels ±3, 0
            if state and state["config"]["lambda_"]:
                regularizer.levels.data = state["mdr"]["levels"]
            with torch.no_grad():
                e = network(images)
            e.requires_grad_()
            distances = mdr.unit_mean(mdr.pairwise_distances(e))
            drawn = mdr.distance_weighted_negatives(
                e.detach(), labels, torch.Generator().manual_seed(number))
            dml, reg = mdr.triplet_loss(distances, *drawn, cfg.margin), regularizer(distances)
            of_dml, = torch.autograd.grad(dml, e, retain_graph=True)
            of_reg, = torch.autograd.grad(cfg.lambda_ * reg, e)
            scale = e.detach().norm(dim=1).mean()                       # gradients by e / scale
            figures.append([dml.item(), reg.item(), (scale * of_dml).norm().item(),
                            (scale * of_reg).norm().item(), F.cosine_similarity(
                                of_dml.flatten(), of_reg.flatten(), 0).item()])
        cells = " | ".join(f"{v:.3f}" for v in torch.tensor(figures).mean(0).tolist())
        print(f"| {name or 'pretrained'} | {cells} |")


def main(words=None):
    """words: of the command line"""
    parser = argparse.ArgumentParser("benchmarks/cub128_baselines.py", allow_abbrev=False)
    parser.add_argument("what", choices=["triplet", "npair", "mdr"])
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", default="runs-search")
    parser.add_argument("--factors", type=float, nargs="+", default=[1, 4, 16])
    parser.add_argument("--runs", nargs="+", default=[])
    args = parser.parse_args(words)
    {"triplet": triplet, "npair": npair, "mdr": gradients}[args.what](args)


if __name__ == "__main__":
    main()
