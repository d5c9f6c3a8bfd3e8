"""How the small backbone of glyphs was pretrained: about a minute on one core.

    python studies/pretrain_glyphs.py FILE.pth        committed as support/glyphs_backbone.pth
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402

import common  # noqa: E402
import jrd  # noqa: E402
from support import command_line, files, glyphs  # noqa: E402


def pretrain(path):
    """Train SmallNet as a classifier of the 400 pretraining classes and save it."""
    torch.manual_seed(0)
    split, epochs = common.Split(*glyphs.glyphs("pretraining"), range(400)), 12
    cfg = argparse.Namespace(batch=100, seed=0, workers=0, device="cpu")
    loader = common.train_loader(split, glyphs.SMALL_TRANSFORMS[1], jrd.batches, cfg)
    network, head = glyphs.SmallNet(), nn.Linear(128, 400)
    optimizer = torch.optim.AdamW([*network.parameters(), *head.parameters()], weight_decay=0.01)
    steps = epochs * len(split) // cfg.batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for epoch in range(epochs):
        for images, labels in loader(epoch):
            images = (images.float() - 127.5) / 127.5                   # -1 to 1
            loss = nn.functional.cross_entropy(head(network(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    torch.save(network.state_dict(), path)
    print(f"wrote {path}, SHA-256 {files.sha256(path)}; the committed file's: {glyphs.SHA256}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser("studies/pretrain_glyphs.py", allow_abbrev=False)
    parser.add_argument("file", type=command_line.output(".pth"))
    command_line.main(lambda args: pretrain(args.file), parser.parse_args)
