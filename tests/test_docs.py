"""README and docs: links, anchors and pictures are there, commands are understood."""
import functools
import importlib
import re
import shlex
import subprocess

import pytest

import common
from conftest import ROOT
from report import __main__ as report

PAGES = [path for folder in ("", "docs/**/", "results/**/", "benchmarks/", "studies/")
         for path in sorted(ROOT.glob(f"{folder}*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


# ---------------------------------------------------------------------------- reading Markdown
def fenced(text):
    """-> [(language, text of the block)]"""
    return re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.M | re.DOTALL)


def prose(text):
    """A page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.DOTALL)


def anchor(title):
    """GitHub's: small letters, digits, - and _ stay, spaces become -, of links the text stays."""
    title = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
    return "".join("-" if c == " " else c for c in title.strip().lower()
                   if c in " -_" or c.isalpha() or c.isdecimal())


@functools.cache
def anchors(page):
    anchors, times = set(), {}
    for title in re.findall(r"^#{1,6} +(.+?) *#*$", prose(page.read_text(encoding="utf-8")), re.M):
        name = anchor(title)
        anchors.add(f"{name}-{times[name]}" if name in times else name)
        times[name] = times.get(name, 0) + 1
    return anchors


def targets(page):
    """What a page links to, pictures too."""
    text = re.sub(r"(?<!\[)`[^`\n]+`(?!\])", "", prose(page.read_text(encoding="utf-8")))
    return (re.findall(r"\]\(([^)\s]+)(?: +\"[^\"]*\")?\)", text)
            + re.findall(r"<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"", text))


@functools.cache
def tracked():
    """The files of the repository, None outside a checkout."""
    git = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others",
                          "--exclude-standard"], capture_output=True, text=True)
    return None if git.returncode else set(git.stdout.splitlines())


# ---------------------------------------------------------------------------- links
@each_page
def test_links_lead_somewhere(page):
    for target in targets(page):
        if re.match(r"https?://", target):
            continue
        path, _, name = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists() and file.is_relative_to(ROOT), f"{target}: no such file"
        if tracked() is not None and file.is_file():
            assert file.relative_to(ROOT).as_posix() in tracked(), f"{target}: not committed"
        if name and file.suffix == ".md":
            assert name in anchors(file), f"{target}: no such heading"
        else:
            assert not name, f"{target}: a line, which moves"


def test_every_page_of_docs_is_reached_from_the_readme():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        linked = {(page.parent / target.partition("#")[0]).resolve() for target in targets(page)
                  if not re.match(r"https?://|#", target)}
        waiting += [file for file in linked if file.suffix == ".md" and file not in seen]
    assert not set(PAGES) - seen


@each_page
def test_formulas_survive_markdown(page):
    """Between bare dollars GitHub reads Markdown first: \\, becomes a comma, )_ begins emphasis.
    Displayed formulas stand in ```math, which it leaves alone."""
    text = re.sub(r"\$`.+?`\$|`[^`\n]*`", "", prose(page.read_text(encoding="utf-8")))
    assert "$$" not in text
    for formula in re.findall(r"\$(.+?)\$", text):
        eaten = re.search(r"\\[!-/:-@[-`{-~]|(?<![A-Za-z0-9])_|\*|<[A-Za-z/!]", formula)
        assert not eaten, formula


# ---------------------------------------------------------------------------- commands
# What is defined before a block: every command goes to `note`, which writes its words down, in one
# line and so in one piece: the commands of a pipeline write at the same time.
NOTING = r"""
note() { local IFS=$'\37' words; words="$*"; printf '%s\n' "${words//$'\n'/$'\36'}" >> "$NOTES"; }
command_not_found_handle() { note "$@"; }
for name in bash cd source; do eval "$name() { note $name \"\$@\"; }"; done
"""


def scripts_of(page):
    """The shell blocks of a page, and what stands between backticks and begins with python or bash.

    A block without a language is one if it begins with a command.
    """
    text = page.read_text(encoding="utf-8")
    begins = re.compile(r"\s*(#|(\w+=\S+ +)*(python|bash|pip|export|for|cd|git|source)\b)")
    blocks = [block for language, block in fenced(text)
              if (language in ("bash", "sh") or not language and begins.match(block))
              and not block.startswith("#!")]                   # a file that is shown whole
    inline = re.findall(r"(?<!`)`((?:python|bash) [^`\n]+)`(?!`)", prose(text))
    return [*blocks, "\n".join(code for code in inline if "..." not in code)]


def commands(script, folder):
    """What bash would run of a script, loops unrolled -> lists of words; nothing is run, for PATH
    leads nowhere."""
    notes = folder / "notes"
    notes.write_bytes(b"")
    bash = subprocess.run(["/bin/bash", "-c", NOTING + script], cwd=folder, capture_output=True,
                          text=True, env={"PATH": "/nowhere", "NOTES": str(notes)})
    assert bash.returncode == 0 and not bash.stderr, bash.stderr
    return [line.replace("\36", "\n").split("\37")
            for line in notes.read_text(encoding="utf-8").split("\n")[:-1]]


def accepted(words):
    """Let a script's own parse_args read its command; of the other scripts only the flags are
    looked up.  AssertionError: no such script or flag.  SystemExit: parse_args refuses it."""
    program, script, *rest = [*words, ""]
    rest = rest[:-1]
    if program == "bash":
        assert script == "run_all.sh"
        own = {"--test": 0, "--jobs": 1}                # what report does not know, and its values
        while flags := set(rest) & set(own):
            at = rest.index(flags.pop())
            del rest[at:at + 1 + own[rest[at]]]
        report.parse_args(rest)
    elif program == "python" and script == "-m":
        if rest[0] == "report":
            report.parse_args(rest[1:])
        else:
            assert rest[0] in ("timeit", "pytest", "venv", "pip")
    elif program == "python" and script in SCRIPTS:
        importlib.import_module(script.removesuffix(".py")).parse_args(rest)
    elif program == "python":
        source = (ROOT / script).read_text(encoding="utf-8")
        source += (ROOT / "support" / "command_line.py").read_text(encoding="utf-8")
        for flag in rest:                               # some hand flags on to a paper's script
            assert not flag.startswith("--") or f'"{flag}"' in source, flag
    else:
        assert program in OTHERS, program


# docs/extending.md adds this one; test_map.py runs it.
EXAMPLES = (["python", "dml_da.py", "--regularizer", "spread"],)
OTHERS = "pip git cd source xargs mkdir grep sed sbatch scontrol".split()
SCRIPTS = ("jrd.py", "mdr.py", "dml_da.py", "eval.py", "common.py")


@each_page
def test_commands_are_understood(page, tmp_path, capsys):
    for script in scripts_of(page):
        for words in commands(script, tmp_path):
            if words in EXAMPLES:
                continue
            try:
                accepted(words)
            except (AssertionError, SystemExit, OSError, common.UserError) as error:
                pytest.fail(f"{shlex.join(words)}: {capsys.readouterr().err or error}")


def test_commands_are_found(tmp_path):
    """... and what is no command is refused."""
    for wrong in ("python jrd.py --sed 0", "python jdr.py", "bash run_all.sh --tests", "rm x",
                  "python -m reports", "python benchmarks/step.py --threat 1"):
        with pytest.raises((AssertionError, SystemExit, OSError)):
            accepted(shlex.split(wrong))
    readme = ROOT / "README.md"
    assert sum(len(commands(script, tmp_path)) for script in scripts_of(readme)) > 5


# ---------------------------------------------------------------------------- lectures
LECTURES = ("jrd", "mdr", "dml_da")


def lecture(script):
    """-> the lecture's text, the script's"""
    return ((ROOT / "docs" / "lectures" / f"{script}.md").read_text(encoding="utf-8"),
            (ROOT / f"{script}.py").read_text(encoding="utf-8"))


@pytest.mark.parametrize("script", LECTURES)
def test_the_five_lines_stand_in_the_script(script):
    page, source = lecture(script)
    (quoted,) = [block.splitlines() for language, block in fenced(page) if language == "python"]
    assert len(quoted) == 5 and {*quoted} <= {line.strip() for line in source.splitlines()}


@pytest.mark.parametrize("script", LECTURES)
def test_each_exercise_changes_one_line(script):
    """The line stands once in the script, which is Python again with the other, and the name that
    the exercise's runs have is that of its heading."""
    page, source = lecture(script)
    exercises = re.split(r"^### ", page[page.index("## Exercises"):], flags=re.M)[1:]
    assert len(exercises) == 3
    for exercise in exercises:
        (_, diff), = [block for block in fenced(exercise) if block[0] == "diff"]
        old, new = diff.splitlines()
        assert old[0] == "-" and new[0] == "+" and source.count(f"\n{old[1:]}\n") == 1, diff
        compile(source.replace(f"\n{old[1:]}\n", f"\n{new[1:]}\n"), script, "exec")
        name, = set(re.findall(r"--name ([\w-]+)", exercise))
        assert f"python {script}.py --epochs 15 --name {name}" in exercise
        assert f"-{name}" in re.search(r"--compare .*", exercise)[0]
