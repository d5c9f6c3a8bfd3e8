"""The links of docs/map.md: each `module.name` there leads to the line where it is defined, and
`test_module.test_name` to its file (tests move too often for lines).

    python docs/map.py          writes them anew, after the code has changed
"""
import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "map.md"
# `jrd.jrs`, with or without its link; not `jrd.py`, a file.
NAME = re.compile(r"(\[)?`([a-z_]\w*(?:\.\w+)+)`(?(1)\]\([^)]*\))")


def file_of(module):
    """'jrd', 'support.runs', 'test_jrd' -> its file"""
    folder = "tests" if module.startswith("test_") else "."
    return ROOT / folder / (module.replace(".", "/") + ".py")


@functools.cache
def statements(file):
    return ast.parse(file.read_text(encoding="utf-8")).body


def defined(body, name):
    """The statement of a body that defines a name, None where there is none."""
    for node in body:
        names = [getattr(node, "name", None)]
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        if name in names:
            return node


def place(name):
    """'mdr.MDR.update' -> its file, its line; a name that is imported: where from.

    LookupError: there is no such name.
    """
    parts = name.split(".")
    depth = 2 if parts[0] in ("support", "report") else 1
    module, path = ".".join(parts[:depth]), parts[depth:]
    if not path or not file_of(module).exists():
        raise LookupError(f"{name}: no such name")
    body = statements(file_of(module))
    for part in path:
        node = defined(body, part)
        if node is None:
            raise LookupError(f"{name}: {file_of(module).relative_to(ROOT)} has no {part}")
        if isinstance(node, ast.ImportFrom):
            return place(".".join([node.module, *path]))
        body = getattr(node, "body", [])
    return file_of(module), node.lineno


def with_links(text):
    """The page with every link as the code now is."""
    def link(match):
        name = match[2]
        if name.endswith((".py", ".md")):
            return match[0]
        file, line = place(name)
        anchor = "" if name.startswith("test_") else f"#L{line}"
        return f"[`{name}`](../{file.relative_to(ROOT).as_posix()}{anchor})"
    return NAME.sub(link, text)


if __name__ == "__main__":
    PAGE.write_text(with_links(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
