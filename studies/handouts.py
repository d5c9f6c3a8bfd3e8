"""The diffs of docs/extending.md and docs/lectures/*.md as files for a class.

    python studies/handouts.py write DIR    one file per diff, for `git apply FILE`
    python studies/handouts.py check        whether each of them applies to this folder's files
    python studies/handouts.py renew        after the scripts have changed: writes the hunks' line
                                            numbers, function names and context anew in the pages

A diff on a page is a whole unified diff, so that a reader may also copy it into a file.  `renew`
keeps its + and - lines.  Of the context it replaces what the script no longer has, from the outside
inwards; it stops with a message where a - line is gone or a place is no longer unique.
"""
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from support.command_line import main  # noqa: E402
from support.files import UserError  # noqa: E402

PAGES = (ROOT / "docs" / "extending.md", *sorted((ROOT / "docs" / "lectures").glob("*.md")))
HEADER = re.compile(r"--- a/(\S+)\n\+\+\+ b/\1\n")
HUNK = re.compile(r"^@@.*\n", re.M)
BLOCK = re.compile(r"(^```diff\n)(.*?)(^```$)", re.M | re.S)


class Handout(NamedTuple):
    name: str                   # of its file: jrd-1-a-fixed-bandwidth.diff
    page: Path
    changes: str                # the file that it changes: jrd.py
    diff: str


def handouts():
    """Every diff of the pages, named after the file that it changes and the heading above it."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            heading = re.findall(r"^#+ (.*)", text[:block.start()], re.M)[-1]
            slug = re.sub(r"\W+", "-", heading.lower())
            changes = HEADER.match(block[2])[1]
            found.append(Handout(f"{Path(changes).stem}-{slug}.diff", page, changes, block[2]))
    return found


# ---------------------------------------------------------------------------- write, check
def write(folder):
    Path(folder).mkdir(parents=True, exist_ok=True)
    for handout in handouts():
        path = Path(folder, handout.name)
        path.write_text(handout.diff, encoding="utf-8", newline="\n")
        print(f"{path}: changes {handout.changes}, from {handout.page.relative_to(ROOT)}")


def refused(diff, folder=ROOT):
    """What `git apply --check` says of a diff in a folder; "" if the diff applies as it stands"""
    apply = subprocess.run(["git", "apply", "--check", "-"], input=diff.encode(), cwd=folder,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return apply.stdout.decode() if apply.returncode else ""


def check():
    for handout in handouts():
        why = refused(handout.diff)
        if why:
            raise UserError(f"{handout.page.relative_to(ROOT)}, {handout.name}: {why.strip()}")
        print(f"applies: {handout.name}")


# ---------------------------------------------------------------------------- renew
def places(lines, old):
    """Where in a file's lines a hunk's old lines stand -> indices"""
    return [i for i in range(len(lines) - len(old) + 1) if lines[i:i + len(old)] == old]


def context(lines):
    """Lines of a file as lines of a hunk.  A blank one has no blank: an editor strips it."""
    return [" " + line if line else "" for line in lines]


def around(hunk, lines):
    """A hunk whose outer context is the file's again, at its only place in a file -> hunk, index.
    UserError if there is no such place."""
    changed = [i for i, line in enumerate(hunk) if line[:1] in ("+", "-")]
    before, after = changed[0], len(hunk) - 1 - changed[-1]     # lines of context
    drops = itertools.product(range(before + 1), range(after + 1))
    for first, last in sorted(drops, key=sum):                  # as little context as must be
        low, high = first, len(hunk) - last
        old = [line[1:] for line in hunk[low:high] if not line.startswith("+")]
        at = places(lines, old) if old else []
        if len(at) == 1:
            start, end = at[0], at[0] + len(old)
            top = max(start - low, 0)
            bottom = end + max(len(hunk) - high, 1 - after)     # one line at least: without it git
            while not lines[bottom - 1]:                        # looks at the end of the file; a
                bottom += 1                                     # blank one is lost in copying
            hunk = context(lines[top:start]) + hunk[low:high]
            return hunk + context(lines[end:bottom]), top
    raise UserError("its lines stand nowhere, or at several places:\n" + "\n".join(hunk))


def function_at(lines, index):
    """The def or class around a line, as git shows it after @@; "" outside"""
    indent = len(lines[index]) - len(lines[index].lstrip())
    for line in reversed(lines[:index]):
        of_line = len(line) - len(line.lstrip())
        if line and of_line < indent:
            found = re.match(r"\s*((?:def|class) \w+)", line)
            if found:
                return f" {found[1]}"
            indent = of_line
    return ""


def renewed(diff, source):
    """A diff with line numbers, function names and context as the file has them now"""
    path, lines, shift = HEADER.match(diff)[1], source.split("\n"), 0
    text = f"--- a/{path}\n+++ b/{path}\n"
    for part in HUNK.split(HEADER.sub("", diff, count=1))[1:]:
        hunk, at = around(part.removesuffix("\n").split("\n"), lines)
        added = sum(line.startswith("+") for line in hunk)
        removed = sum(line.startswith("-") for line in hunk)
        same = len(hunk) - added - removed
        first = next(i for i, line in enumerate(hunk) if line[:1] in ("+", "-"))
        text += (f"@@ -{at + 1},{same + removed} +{at + 1 + shift},{same + added} @@"
                 f"{function_at(lines, at + first)}\n" + "\n".join(hunk) + "\n")
        shift += added - removed
    return text


def renew():
    for page in PAGES:
        def block_of(block):
            path = HEADER.match(block[2])[1]
            source = (ROOT / path).read_text(encoding="utf-8")
            try:
                return block[1] + renewed(block[2], source) + block[3]
            except UserError as error:
                raise UserError(f"{page.relative_to(ROOT)}, the diff of {path}: {error}")
        before = page.read_text(encoding="utf-8")
        after = BLOCK.sub(block_of, before)
        if after != before:
            page.write_text(after, encoding="utf-8", newline="\n")
            print(f"renewed {page.relative_to(ROOT)}")
    check()


if __name__ == "__main__":
    match sys.argv[1:]:
        case "write", folder:
            main(write, lambda: folder)
        case ["check"]:
            main(lambda _: check(), lambda: None)
        case ["renew"]:
            main(lambda _: renew(), lambda: None)
        case _:
            sys.exit(__doc__)
