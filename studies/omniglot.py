"""Omniglot as a folder of one's own: handwriting of alphabets that the network has never seen.

    git clone --depth 1 https://github.com/brendenlake/omniglot
    python studies/omniglot.py omniglot/python data/omniglot
    python jrd.py --dataset data/omniglot --backbone small --epochs 15
    python -m report --sheet runs/jrd-omniglot-epochs15-backbonesmall-s0/last.pt

A class is one character, drawn by twenty people.  The five alphabets of images_background_small1
train the network; those of small2 that are not among them, Katakana, Sanskrit and Tagalog, test it.
Omniglot is of Brenden Lake, Ruslan Salakhutdinov and Joshua Tenenbaum (Science, 2015) and has the
MIT licence, so docs/omniglot.jpg may show it.
"""
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support.command_line import Parser, main  # noqa: E402
from support.files import UserError  # noqa: E402

PARTS = {"train": "images_background_small1.zip", "test": "images_background_small2.zip"}
NAMES = {"Japanese_(katakana)": "Katakana", "Early_Aramaic": "Aramaic"}


def unpack(args):
    """Write folder/train and folder/test, a sub-folder for each character, and print their number.
    UserError: an archive cannot be read."""
    alphabets = {part: set() for part in PARTS}
    for part, name in PARTS.items():
        classes = set()
        try:
            archive = zipfile.ZipFile(args.source / name)
        except (OSError, zipfile.BadZipFile) as error:
            raise UserError(f"cannot read {args.source / name} ({error}); it is in the folder "
                            "python/ of the repository brendenlake/omniglot")
        for entry in archive.namelist():                    # small1/Greek/character01/0394_01.png
            if not entry.endswith(".png"):
                continue
            *_, alphabet, character, image = Path(entry).parts
            if part == "test" and alphabet in alphabets["train"]:
                continue
            kind = f"{NAMES.get(alphabet, alphabet)} {character.removeprefix('character')}"
            target = args.folder / part / kind / image
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(entry))
            classes.add(kind)
            alphabets[part].add(alphabet)
        print(f"{args.folder / part}: {len(classes)} classes")


def parse_args():
    parser = Parser("studies/omniglot.py", __doc__)
    parser.add_argument("source", type=Path, help="the folder of the two archives")
    parser.add_argument("folder", type=Path, help="the data set to write")
    return parser.parse_args()


if __name__ == "__main__":
    main(unpack, parse_args)
