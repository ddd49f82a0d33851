"""JPEG files of every sampling and coding: pixels are compared exactly, damaged files as well."""
import glob
import os

import numpy as np
import tensorflow as tf2

from registry import case, inp, raw, tf

S = tf.string
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3, "crates", "kernels", "tests", "fixtures", "jpeg")
FILES = {os.path.basename(f)[:-4]: open(f, "rb").read() for f in sorted(glob.glob(os.path.join(FOLDER, "*.jpg")))}
RNG = np.random.RandomState(11)


def jpeg(image, **options):
    """A JPEG made by TensorFlow, outside of the case."""
    with tf2.Graph().as_default(), tf.Session() as s:
        return s.run(raw.EncodeJpeg(image=tf.constant(image), **options))


def waves(height, width):
    y, x = np.mgrid[0:height, 0:width]
    bands = np.stack([np.sin(y / 9 + x / 7), np.cos(y / 5 - x / 11), np.sin(x / 3) * np.cos(y / 4)], -1)
    return np.clip(127 + 100 * bands + RNG.randn(height, width, 3) * 8, 0, 255).astype(np.uint8)


for height, width in ((1, 1), (2, 3), (8, 8), (9, 17), (16, 31), (33, 5), (129, 257)):
    for name, options in dict(plain={}, full=dict(chroma_downsampling=False), low=dict(quality=20), best=dict(quality=100), progressive=dict(progressive=True, quality=60)).items():
        FILES["%s_%dx%d" % (name, height, width)] = jpeg(waves(height, width), **options)

for name, data in FILES.items():
    case("DecodeJpeg/exact/" + name, lambda data=data: [
        raw.DecodeJpeg(contents=inp(data, S), ratio=ratio, fancy_upscaling=fancy, dct_method=method)
        for ratio in (1, 2, 4, 8) for fancy in (True, False) for method in ("", "INTEGER_ACCURATE")])
    case("DecodeImage/exact/" + name, lambda data=data: [raw.DecodeImage(contents=inp(data, S)), raw.DecodeImage(contents=inp(data, S), dtype=tf.float32)])
    for channels in (1, 3):
        case("DecodeJpeg/exact_channels/%s/%d" % (name, channels), lambda data=data, channels=channels: raw.DecodeJpeg(contents=inp(data, S), channels=channels))
    case("ExtractJpegShape/exact/" + name, lambda data=data: raw.ExtractJpegShape(contents=inp(data, S)))

for name in ("420", "422", "440", "411", "gray", "progressive", "ycck", "scans"):
    for window in ((0, 0, 23, 29), (5, 3, 4, 11), (8, 16, 15, 13), (22, 28, 1, 1), (3, 17, 9, 2)):
        case("DecodeAndCropJpeg/exact/%s/%s" % (name, "_".join(map(str, window))), lambda name=name, window=window: [
            raw.DecodeAndCropJpeg(contents=inp(FILES[name], S), crop_window=inp(window), fancy_upscaling=fancy) for fancy in (True, False)])
    case("DecodeAndCropJpeg/exact/%s/half" % name, lambda name=name: raw.DecodeAndCropJpeg(contents=inp(FILES[name], S), crop_window=inp([2, 3, 7, 9]), ratio=2))

# Truncated: refused, or the rows that are there, or all with the rest in grey.
for name in ("420", "444", "gray", "restarts"):
    for cut in (2, 60, 250):
        data = FILES[name][:-cut]
        for fraction in (1.0, 0.2, 0.0):
            case("DecodeJpeg/cut/%s/%d/%g" % (name, cut, fraction), lambda data=data, fraction=fraction: raw.DecodeJpeg(contents=inp(data, S), acceptable_fraction=fraction))
        case("DecodeJpeg/cut/%s/%d/recover" % (name, cut), lambda data=data: raw.DecodeJpeg(contents=inp(data, S), try_recover_truncated=True))

WHOLE = FILES["420"]
FRAME = WHOLE.index(b"\xff\xc0")
SCAN = WHOLE.index(b"\xff\xda")


def changed(at, *values):
    return WHOLE[:at] + bytes(values) + WHOLE[at + len(values):]


for name, data in dict(
        twelve_bits=changed(FRAME + 4, 12), no_width=changed(FRAME + 7, 0, 0), no_height=changed(FRAME + 5, 0, 0), sampling=changed(FRAME + 11, 0x50), lossless=changed(FRAME + 1, 0xc3),
        component=changed(SCAN + 5, 9), twice=changed(SCAN + 7, 1), table=changed(SCAN + 6, 0x33), quantiser=changed(FRAME + 12, 3), length=changed(FRAME + 3, 16), huge=changed(FRAME + 5, 0xff, 0xdc, 0xff, 0xdc),
        too_wide=changed(FRAME + 7, 0xff, 0xff), two_frames=WHOLE[:SCAN] + WHOLE[FRAME:], no_scan=WHOLE[:SCAN] + b"\xff\xd9", scan_again=WHOLE[:-2] + WHOLE[SCAN:], garbage_between=WHOLE[:SCAN] + b"\0\1\2" + WHOLE[SCAN:],
        unknown_marker=WHOLE[:SCAN] + b"\xff\x02\0\2" + WHOLE[SCAN:], marker_in_scan=changed(SCAN + 60, 0xff, 0xd9), zeros_in_scan=changed(SCAN + 60, *[0] * 40), after_end=WHOLE + b"more").items():
    case("DecodeJpeg/damaged/" + name, lambda data=data: raw.DecodeJpeg(contents=inp(data, S)))
    case("ExtractJpegShape/damaged/" + name, lambda data=data: raw.ExtractJpegShape(contents=inp(data, S)))
