"""Pixels from files: torchvision decodes as Pillow does; whatever it is not trusted with goes by
Pillow.  Another release of either may bring another JPEG or WebP library: then this turns red."""
import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageOps
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

import common
import dml_da
import jrd
import mdr
from conftest import each_script, photograph
from support import images, photos
from support.photos import decode, decode_as_stored, shown

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")    # torchvision 0.29's
SIZES = [(75, 100), (1, 1), (17, 33), (8, 3), (1, 50)]                  # height, width


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpegs():
    """{what it is: its bytes} of RGB and grey JPEGs"""
    kinds = {}
    for size in SIZES:
        photo = Image.fromarray(photograph(*size))
        for sampling in ("4:4:4", "4:2:2", "4:2:0", "4:1:1"):
            for quality in (30, 75, 95, 100):
                for progressive in (False, True):
                    kinds[f"{sampling} {quality} {progressive} {size}"] = saved(
                        photo, "JPEG", subsampling=sampling, quality=quality,
                        progressive=progressive)
        for progressive in (False, True):
            kinds[f"grey {progressive} {size}"] = saved(photo.convert("L"), "JPEG",
                                                        progressive=progressive)
        for name, options in {"rows": {"restart_marker_rows": 1}, "rgb": {"keep_rgb": True},
                              "blocks": {"restart_marker_blocks": 2}, "optimized": {"optimize": 1},
                              "comment": {"comment": "a photo"}, "dpi": {"dpi": (72, 72)}}.items():
            kinds[f"{name} {size}"] = saved(photo, "JPEG", **options)
        kinds[f"of a phone {size}"] = saved(photo, "MPO", save_all=True,
                                            append_images=[photo.rotate(180)])
    return kinds


def webps():
    kinds = {}
    for size in SIZES:
        photo = Image.fromarray(photograph(*size))
        for quality in (0, 30, 80, 100):
            kinds[f"{quality} {size}"] = saved(photo, "WEBP", quality=quality)
        kinds[f"lossless {size}"] = saved(photo, "WEBP", lossless=True)
        kinds[f"grey {size}"] = saved(photo.convert("L"), "WEBP")
    return kinds


def others():
    """Of kinds that go by Pillow."""
    kinds = {}
    for size in SIZES:
        photo = Image.fromarray(photograph(*size))
        for mode in ("1", "L", "P", "RGB", "RGBA", "LA"):
            kinds[f"png {mode} {size}"] = saved(photo.convert(mode), "PNG")
        for kind in ("GIF", "BMP", "TIFF", "JPEG2000"):
            kinds[f"{kind} {size}"] = saved(photo, kind)
        kinds[f"16 bits {size}"] = saved(
            Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257), "PNG")
        kinds[f"cmyk {size}"] = saved(photo.convert("CMYK"), "JPEG")
        cut_out = photo.convert("RGBA")
        cut_out.putpixel((0, 0), (0, 0, 0, 0))
        kinds[f"cut out {size}"] = saved(cut_out, "WEBP", lossless=True)
        for kind in ("WEBP", "PNG", "GIF"):
            kinds[f"frames {kind} {size}"] = saved(photo, kind, save_all=True,
                                                   append_images=[ImageOps.invert(photo)])
    return kinds


def by_pillow(content):
    """... alone: the pixels of convert("RGB"), None if the file is refused"""
    try:
        with Image.open(io.BytesIO(content)) as image:
            return pil_to_tensor(image.convert("RGB"))
    except Exception:
        return None


def by_torchvision(content):
    with photos.opened(io.BytesIO(content)) as image:
        return photos._by_torchvision(image)


def read(function, content):
    try:
        return function(io.BytesIO(content))
    except common.UserError:
        return None


def assert_same(got, want, name):
    assert got is not None and want is not None, name
    assert torch.equal(got, want) and got.dtype == torch.uint8, name
    assert got.stride() == want.stride(), f"{name}: resizing may depend on the order in memory"


# ---------------------------------------------------------------------------- whole files
@pytest.mark.parametrize("kinds", [jpegs, webps])
def test_torchvision_decodes_as_pillow(kinds):
    for name, content in kinds().items():
        want = by_pillow(content)
        assert_same(by_torchvision(content), want, name)
        assert_same(decode(io.BytesIO(content)), want, name)
        assert_same(decode_as_stored(io.BytesIO(content)), want, name)


def test_other_kinds_go_by_pillow():
    for name, content in others().items():
        assert by_torchvision(content) is None, name
        assert_same(decode_as_stored(io.BytesIO(content)), by_pillow(content), name)
        assert_same(decode(io.BytesIO(content)), pil_to_tensor(shown(io.BytesIO(content))), name)


def test_without_torchvisions_decoder_the_pixels_are_the_same(monkeypatch):
    """torchvision 0.29 says that a later one will have none."""
    monkeypatch.setattr(photos, "decode_image", None)
    for name, content in (jpegs() | webps()).items():
        assert_same(decode(io.BytesIO(content)), by_pillow(content), name)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp", "a.jp2", "a"])
def test_a_file_is_judged_by_its_content(name, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(saved(Image.fromarray(photograph(75, 100)), "JPEG"))
    monkeypatch.setattr(photos, "_as_shown", pytest.fail)
    assert decode(tmp_path / name).shape == (3, 75, 100)


def profile():
    """Red and blue are swapped."""
    own = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return own.replace(b"rXYZ", b"....").replace(b"bXYZ", b"rXYZ").replace(b"....", b"bXYZ")


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
@pytest.mark.parametrize("turn", [1, 2, 3, 4, 5, 6, 7, 8, None])
@pytest.mark.parametrize("coloured", [True, False])
def test_tags_and_profiles_count_for_viewers_alone(kind, turn, coloured):
    photo, exif, options = Image.fromarray(photograph(40, 60)), Image.Exif(), {}
    if turn:
        exif[photos.ORIENTATION] = turn
    if coloured:
        options["icc_profile"] = profile()
    content = saved(photo, kind, exif=exif, **options)
    stored = by_pillow(content)
    assert_same(by_torchvision(content), stored, "stored")
    assert_same(decode_as_stored(io.BytesIO(content)), stored, "stored")
    got = decode(io.BytesIO(content))
    assert torch.equal(got, pil_to_tensor(shown(io.BytesIO(content))))
    assert torch.equal(got, stored) == (turn in (1, None) and not coloured)
    assert (got.shape == stored.shape) == (turn in (1, 2, 3, 4, None))


# ---------------------------------------------------------------------------- broken files
BROKEN = {"baseline": ("JPEG", {}), "progressive": ("JPEG", {"progressive": True}),
          "restarts": ("JPEG", {"restart_marker_rows": 1}), "webp": ("WEBP", {}),
          "lossless": ("WEBP", {"lossless": True}), "png": ("PNG", {})}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_read_or_refused_as_by_pillow(name, capfd):
    """Cut off anywhere, or with a few other bytes; torchvision's PNG decoder would end the
    process.  Libraries print a line of their own about some."""
    kind, options = BROKEN[name]
    whole = saved(Image.fromarray(photograph(75, 100)), kind, **options)
    cuts = {*range(1, len(whole), len(whole) // 80), *range(len(whole) - 30, len(whole))}
    broken, draw = [whole[:cut] for cut in sorted(cuts)], np.random.RandomState(0)
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randint(2, len(whole))] = draw.randint(256)
        broken.append(bytes(content))
    refused = 0
    for content in broken:
        want, got = by_pillow(content), read(decode_as_stored, content)
        refused += want is None
        assert (got is None) == (want is None)
        assert want is None or torch.equal(got, want)
    assert 50 < refused < len(broken)


def test_a_header_that_promises_too_much_takes_no_memory(monkeypatch):
    """4.3 gigapixels in a file of a few hundred bytes: Pillow's limit holds for all."""
    content = saved(Image.fromarray(photograph(16, 16)), "JPEG")
    start = content.index(b"\xff\xc0") + 5                              # height, width
    content = content[:start] + b"\xff\xf0\xff\xf0" + content[start + 4:]
    monkeypatch.setattr(photos, "decode_image", pytest.fail)
    for function in (decode, decode_as_stored):
        with pytest.raises(common.UserError, match="exceeds limit"):
            function(io.BytesIO(content))


# ---------------------------------------------------------------------------- transforms, cache
@pytest.fixture
def folder(tmp_path):
    """Photos that go by torchvision and by Pillow, of several sizes."""
    content = saved(Image.fromarray(photograph(60, 90)), "JPEG")
    for i, size in enumerate([(60, 90), (90, 60), (75, 100), (33, 47)] * 2):
        photo = Image.fromarray(photograph(*size, seed=i))
        place = tmp_path / "photos" / f"c{i // 2}"
        place.mkdir(parents=True, exist_ok=True)
        for kind in ("JPEG", "WEBP", "PNG"):
            (place / f"{i}.{kind.lower()}").write_bytes(saved(photo, kind))
        exif = Image.Exif()
        exif[photos.ORIENTATION] = 6
        (place / f"{i} turned.jpeg").write_bytes(saved(photo, "JPEG", exif=exif))
    (tmp_path / "photos" / "c0" / "again.jpg").write_bytes(content)
    return tmp_path / "photos"


@each_script
@pytest.mark.parametrize("backbone", ["small", "resnet18"])
def test_the_cached_path_gives_the_same_tensors(script, backbone, folder, tmp_path):
    """... as the uncached one, to the order in memory, which decides how a crop is resized.  Both
    can be sent to a worker."""
    words = ["--dataset", str(folder), "--backbone", backbone]
    if backbone != "small":
        words += ["--resize", "40", "--size", "32"]
    train, augment, test = script.transforms(script.parse_args(words))
    ways = [common.load_dataset(str(folder), tmp_path, train, test, cache=cache)
            for cache in (True, False)]
    for part in ("train", "train_plain", "test"):
        cached, files = (getattr(data, part).images for data in ways)
        cached, files, augment = pickle.loads(pickle.dumps((cached, files, augment)))
        assert isinstance(cached, images.CachedImages) == (script is not jrd or part != "train"
                                                           or backbone == "small")
        for i in range(len(files)):
            assert_same(cached[i], files[i], (part, i))
            if part == "train":
                drawn = []
                for image in (cached[i], files[i]):
                    torch.manual_seed(i)
                    drawn.append(augment(image))
                assert torch.equal(*drawn)


def test_mdr_resizes_by_the_authors_pixels(folder):
    """Pillow's Lanczos of Pillow's pixels (U3); a tensor comes back as a tensor."""
    prefix, _, test = mdr.transforms(mdr.parse_args(["--dataset", "cub128"]))
    for path in sorted(folder.rglob("*.*")):
        across = shown(path).resize((146, shown(path).height), Image.LANCZOS)
        want = across.resize((146, 146), Image.LANCZOS)
        assert torch.equal(prefix(decode(path)), pil_to_tensor(want))
        assert torch.equal(test(decode(path)), pil_to_tensor(want.crop((9, 9, 137, 137))))
    several = torch.stack([decode(path)] * 3)               # as glyphs are
    assert torch.equal(prefix(several), torch.stack([prefix(several[0])] * 3))


@pytest.mark.parametrize("script", [jrd, dml_da])
def test_resizing_tensors_is_within_two_of_pillows(script, folder):
    """Of 255; nearly all values are Pillow's or one beside them.  Also the training crops of JRD,
    which were tensors before."""
    _, augment, test = script.transforms(script.parse_args(["--dataset", "cub128"]))
    far = []
    for path in sorted(folder.rglob("*.*")):
        want = pil_to_tensor(test(shown(path)))
        far.append((test(decode(path)).int() - want.int()).abs().flatten())
    far = torch.cat(far)
    assert far.max() <= 2 and (far > 1).double().mean() < 1e-4 and (far > 0).double().mean() < 0.1
    assert to_pil_image(augment(torch.zeros(3, 200, 200, dtype=torch.uint8))).size == (128, 128)
