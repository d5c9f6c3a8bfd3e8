"""studies/toy.py and studies/mechanisms.py draw their pictures."""
import pytest
import torch

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")
from dml_da import class_density  # noqa: E402
from studies import mechanisms, toy  # noqa: E402


def test_the_toy_is_an_animation_and_the_same_twice(tmp_path):
    for name in ("one.gif", "two.gif"):
        toy.draw(tmp_path / name, steps=3, frames=3)
    with Image.open(tmp_path / "one.gif") as picture:
        assert picture.n_frames == 4 and picture.info["loop"] == 0     # the outcome, then the path
    assert (tmp_path / "one.gif").read_bytes() == (tmp_path / "two.gif").read_bytes()


def test_the_toy_shows_what_its_texts_say():
    """Spread within a class: 0 by the loss, with and without JRS; held by MDR and DML-DA."""
    ends = [path[-1][0] for path in toy.paths(800)]
    loss, jrs, mdr, da, circle = (class_density(x, toy.LABELS)[1].mean() for x in ends)
    assert max(loss, jrs, circle) < 0.01 and min(mdr, da) > 0.03
    apart = [torch.pdist(x).max() for x in ends]
    assert apart[1] > 1.1 * apart[0]                                    # JRS: beyond the margin


def test_each_lecture_has_its_figure(tmp_path):
    mechanisms.draw(tmp_path)
    for paper in ("jrd", "mdr", "dml_da"):
        path = tmp_path / f"{paper}_mechanism.png"
        with Image.open(path) as picture:
            assert 1000 < picture.width < 1300
        assert path.stat().st_size < 200_000
