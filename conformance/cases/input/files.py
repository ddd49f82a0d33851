"""Image files both ways; see jpegs.py for the many kinds of JPEG."""
import struct
import zlib

import numpy as np
import tensorflow as tf2

from registry import case, inp, raw, tf

S = tf.string
RNG = np.random.RandomState(5)
SMOOTH = (127 + 100 * np.sin(np.add.outer(np.arange(37) / 9.0, np.arange(29) / 7.0))[:, :, None] * [1, 0.7, -0.5]).astype(np.uint8)
NOISE = RNG.randint(0, 256, (7, 5, 4)).astype(np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, color, rows, extra=b""):
    """A PNG with filter 0; rows is the raw bytes of each row."""
    data = b"".join(b"\0" + r for r in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)) + extra + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def gif(frames, size=(4, 3), palette=bytes(range(24)), tail=b";"):
    """A GIF of uncompressed codes; frames: (left, top, width, height, indices)."""
    out = b"GIF89a" + struct.pack("<HHBBB", size[0], size[1], 0xf2, 0, 0) + palette
    for left, top, width, height, indices in frames:
        bits = "".join(format(c, "04b")[::-1] for i in range(0, len(indices), 4) for c in [8] + list(indices[i:i + 4])) + format(9, "04b")[::-1]
        bits += "0" * (-len(bits) % 8)
        data = bytes(int(bits[i:i + 8][::-1], 2) for i in range(0, len(bits), 8))
        out += b"," + struct.pack("<HHHHB", left, top, width, height, 0) + b"\x03" + bytes([len(data)]) + data + b"\0"
    return out + tail


def bmp(width, height, channels, top_down=False, cut=0):
    row = (width * channels + 3) // 4 * 4
    pixels = bytes((i * 7) % 256 for i in range(row * height))
    head = b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, -height if top_down else height, 1, channels * 8, 0, len(pixels), 0, 0, 0, 0)
    return (head + pixels)[:len(head) + len(pixels) - cut]


PNGS = {
    "gray8": png(3, 2, 8, 0, [b"\x00\x80\xff", b"\x01\x02\x03"]), "gray1": png(10, 1, 1, 0, [b"\xa5\x40"]), "gray4": png(3, 1, 4, 0, [b"\x0f\x50"]), "gray16": png(2, 1, 16, 0, [b"\x12\x34\xff\x00"]),
    "rgb8": png(2, 1, 8, 2, [b"\x00\x80\xff\x10\x20\x30"]), "rgb16": png(1, 1, 16, 2, [b"\x12\x34\x56\x78\x9a\xbc"]), "gray_alpha": png(2, 1, 8, 4, [b"\x10\x80\x20\xff"]), "rgba": png(1, 1, 8, 6, [b"\x01\x02\x03\x04"]),
    "palette": png(3, 1, 8, 3, [b"\x00\x01\x02"], chunk(b"PLTE", bytes(range(9)))), "palette2": png(3, 1, 2, 3, [b"\x18"], chunk(b"PLTE", bytes(range(9)))),
    "palette_alpha": png(3, 1, 8, 3, [b"\x00\x01\x02"], chunk(b"PLTE", bytes(range(9))) + chunk(b"tRNS", b"\x80\x00")), "gray_trns": png(3, 1, 8, 0, [b"\x00\x01\x02"], chunk(b"tRNS", b"\x00\x01")),
}
for name, data in PNGS.items():
    for channels in (0, 1, 3, 4):
        for t in (tf.uint8, tf.uint16):
            case("DecodePng/%s/%d/%s" % (name, channels, t.name), lambda data=data, channels=channels, t=t: raw.DecodePng(contents=inp(data, S), channels=channels, dtype=t))
    case("DecodeImage/%s/float" % name, lambda data=data: raw.DecodeImage(contents=inp(data, S), dtype=tf.float32))
WHOLE = PNGS["rgb8"]
HUGE = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
for name, data in dict(cut=WHOLE[:-20], header_cut=WHOLE[:20], magic_only=WHOLE[:8], crc=WHOLE[:29] + b"\0\0\0\0" + WHOLE[33:], huge=HUGE).items():
    case("DecodePng/bad/" + name, lambda data=data: raw.DecodePng(contents=inp(data, S)))
for op in (raw.DecodePng, raw.DecodeJpeg, raw.DecodeGif, raw.DecodeBmp, raw.DecodeImage):
    case("Decode/%s/empty" % op.__name__, lambda op=op: op(contents=inp(b"", S)))
    case("Decode/%s/vector" % op.__name__, lambda op=op: op(contents=inp([b""], S)))
    case("Decode/%s/unknown" % op.__name__, lambda op=op: op(contents=inp(b"not an image", S)))
    case("Decode/%s/png" % op.__name__, lambda op=op: op(contents=inp(WHOLE, S)))
    case("Decode/%s/gif" % op.__name__, lambda op=op: op(contents=inp(gif([(0, 0, 4, 3, [1] * 12)]), S)))
    case("Decode/%s/gif2" % op.__name__, lambda op=op: op(contents=inp(gif([(0, 0, 4, 3, [1] * 12)] * 2), S)))
    case("Decode/%s/bmp" % op.__name__, lambda op=op: op(contents=inp(bmp(3, 2, 3), S)))
case("DecodePng/channels", lambda: raw.DecodePng(contents=inp(WHOLE, S), channels=2))

FRAME = (0, 0, 4, 3, [i % 8 for i in range(12)])
for name, frames in dict(one=[FRAME], two=[FRAME, (0, 0, 4, 3, [7 - i % 8 for i in range(12)])], part=[FRAME, (1, 1, 2, 2, [1, 2, 3, 4])], small_first=[(1, 1, 2, 2, [1, 2, 3, 4]), FRAME], over=[FRAME, (2, 1, 4, 3, [5] * 12)]).items():
    case("DecodeGif/" + name, lambda frames=frames: raw.DecodeGif(contents=inp(gif(frames), S)))
    for t in (tf.uint8, tf.uint16, tf.float32):
        case("DecodeImage/gif/%s/%s" % (name, t.name), lambda frames=frames, t=t: raw.DecodeImage(contents=inp(gif(frames), S), dtype=t))
    case("DecodeImage/gif/%s/first" % name, lambda frames=frames: raw.DecodeImage(contents=inp(gif(frames), S), expand_animations=False))
for name, data in dict(cut=gif([FRAME])[:40], no_frames=gif([]), cut_second=gif([FRAME, FRAME])[:-6]).items():
    case("DecodeGif/bad/" + name, lambda data=data: raw.DecodeGif(contents=inp(data, S)), text="the decoders word what is wrong differently")
for channels in (1, 3, 4):
    for wanted in (0, 1, 3, 4):
        case("DecodeBmp/%d/%d" % (channels, wanted), lambda channels=channels, wanted=wanted: raw.DecodeBmp(contents=inp(bmp(3, 2, channels), S), channels=wanted))
case("DecodeBmp/top_down", lambda: raw.DecodeBmp(contents=inp(bmp(3, 2, 3, True), S)))
for name, data in dict(cut=bmp(3, 2, 3, cut=1), short=bmp(3, 2, 3)[:20], depth=bmp(3, 2, 2), width=bmp(0, 2, 3), height=bmp(3, 0, 3), huge=bmp(3, 2, 3)[:18] + struct.pack("<ii", 65535, 65535) + bmp(3, 2, 3)[26:],
                       header=bmp(3, 2, 3)[:10] + struct.pack("<i", -5) + bmp(3, 2, 3)[14:]).items():
    case("DecodeBmp/bad/" + name, lambda data=data: raw.DecodeBmp(contents=inp(data, S)))


def jpeg(image, **options):
    """A JPEG made by TensorFlow, outside of the case."""
    with tf2.Graph().as_default(), tf.Session() as s:
        return s.run(raw.EncodeJpeg(image=tf.constant(image), **options))


JPEGS = dict(smooth=jpeg(SMOOTH), gray=jpeg(SMOOTH[:, :, :1]), low=jpeg(SMOOTH, quality=30), full=jpeg(SMOOTH, chroma_downsampling=False), progressive=jpeg(SMOOTH, progressive=True), optimized=jpeg(SMOOTH, optimize_size=True), one=jpeg(SMOOTH[:1, :1]))
for name, data in JPEGS.items():
    for channels in (0, 1, 3):
        case("DecodeJpeg/%s/%d" % (name, channels), lambda data=data, channels=channels: raw.DecodeJpeg(contents=inp(data, S), channels=channels, dct_method="INTEGER_ACCURATE"))
    case("DecodeJpeg/%s/shape" % name, lambda data=data: [tf.shape(raw.DecodeJpeg(contents=inp(data, S), ratio=r)) for r in (1, 2, 4, 8)])
    case("ExtractJpegShape/" + name, lambda data=data: [raw.ExtractJpegShape(contents=inp(data, S), output_type=t) for t in (tf.int32, tf.int64)])
case("DecodeAndCropJpeg/window", lambda: raw.DecodeAndCropJpeg(contents=inp(JPEGS["smooth"], S), crop_window=inp([3, 5, 20, 11])))
for name, window in dict(outside=[30, 5, 20, 11], empty=[3, 5, 0, 11], negative=[-1, 5, 3, 3], count=[1, 2, 3], rank=[[1, 2, 3, 4]], large=[2**31 - 1] * 4).items():
    case("DecodeAndCropJpeg/bad/" + name, lambda window=window: raw.DecodeAndCropJpeg(contents=inp(JPEGS["smooth"], S), crop_window=inp(window)))
for name, data in dict(cut=JPEGS["smooth"][:-300], header=JPEGS["smooth"][:30], magic=b"\xff\xd8\xff\xe0").items():
    case("DecodeJpeg/bad/" + name, lambda data=data: raw.DecodeJpeg(contents=inp(data, S)))
    case("ExtractJpegShape/bad/" + name, lambda data=data: raw.ExtractJpegShape(contents=inp(data, S)))
case("DecodeJpeg/channels", lambda: raw.DecodeJpeg(contents=inp(JPEGS["smooth"], S), channels=4))
case("DecodeJpeg/ratio", lambda: raw.DecodeJpeg(contents=inp(JPEGS["smooth"], S), ratio=3))
case("DecodeJpeg/dct", lambda: raw.DecodeJpeg(contents=inp(JPEGS["smooth"], S), dct_method="BOGUS"))

# What we encode is decoded here by the same side; PNG must come back as it was.
for channels in (1, 2, 3, 4):
    for t in (np.uint8, np.uint16):
        for level in (-1, 0, 3, 9):
            case("EncodePng/%d/%s/%d" % (channels, t.__name__, level), lambda channels=channels, t=t, level=level: raw.DecodePng(
                contents=raw.EncodePng(image=inp(NOISE[:, :, :channels].astype(t) * (257 if t == np.uint16 else 1)), compression=level), dtype=tf.as_dtype(t)))
for name, image in dict(rank=np.zeros((3, 3), np.uint8), channels=np.zeros((3, 3, 5), np.uint8), empty=np.zeros((0, 3, 3), np.uint8)).items():
    if image.size:  # TensorFlow dies of an empty one
        case("EncodePng/bad/" + name, lambda image=image: raw.EncodePng(image=inp(image)))
    case("EncodeJpeg/bad/" + name, lambda image=image: raw.EncodeJpeg(image=inp(image)))
case("EncodePng/bad/compression", lambda: raw.EncodePng(image=inp(NOISE), compression=10))
for name, options in dict(plain={}, low=dict(quality=20), zero=dict(quality=0), best=dict(quality=100), full=dict(chroma_downsampling=False), density=dict(density_unit="cm", x_density=10, y_density=7), xmp=dict(xmp_metadata="<x/>")).items():
    case("EncodeJpeg/bytes/" + name, lambda options=options: raw.EncodeJpeg(image=inp(SMOOTH), **options))
    case("EncodeJpeg/bytes_gray/" + name, lambda options=options: raw.EncodeJpeg(image=inp(SMOOTH[:, :, 1:2]), **options))
case("EncodeJpeg/format", lambda: raw.EncodeJpeg(image=inp(SMOOTH), format="grayscale"))
case("EncodeJpeg/quality", lambda: raw.EncodeJpeg(image=inp(SMOOTH), quality=101))
for quality in (0, 50, 95, 100, 101, -1):
    case("EncodeJpegVariableQuality/%d" % quality, lambda quality=quality: raw.EncodeJpegVariableQuality(images=inp(SMOOTH), quality=inp(quality)))
case("EncodeJpegVariableQuality/vector", lambda: raw.EncodeJpegVariableQuality(images=inp(SMOOTH), quality=inp([50])))
