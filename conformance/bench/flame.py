"""A flame graph from `perf script`: who was on the processor, drawn as a picture that needs nothing but a browser."""
import html
import re

WIDTH, ROW, LEAST = 1600, 16, 0.6  # pixels; narrower frames are left out


class Frame:
    def __init__(self):
        self.samples, self.children = 0, {}

    def child(self, name):
        return self.children.setdefault(name, Frame())


def read(script, names):
    """The tree of all samples; `names` gives the name of a process. A sample is a line `COMM PID/TID`, then its frames from the inmost out."""
    root, head, stack = Frame(), None, []

    def close():
        if head is None:
            return
        frame = root
        frame.samples += 1
        for name in head + stack[::-1]:
            frame = frame.child(name)
            frame.samples += 1
    for line in script.splitlines():
        found = re.match(r"(\S.*?)\s+(\d+)/(\d+)\s*$", line)
        if found:
            close()
            head, stack = [names.get(int(found[2]), found[2]), "thread " + found[1]], []
        elif line.strip() and head is not None:
            words = line.split(None, 1)
            if len(words) == 2 and words[1] != "[unknown]":
                stack.append(short(words[1]))
    close()
    return root


def short(symbol):
    """Without the address behind it and the hash of older manglings."""
    return re.sub(r"(::h[0-9a-f]{16})?(\+0x[0-9a-f]+)?$", "", symbol)


def colour(name):
    """By whose code it is: ours, the kernel's or C's, other crates'."""
    if "downpour" in name:
        return "#f2a65a"
    if "::" not in name:
        return "#b8c4d6"
    return "#f6dd9c"


def svg(root, title):
    parts, deepest = [], 0
    scale = WIDTH / max(root.samples, 1)

    def draw(frame, name, left, depth):
        nonlocal deepest
        width = frame.samples * scale
        if width < LEAST:
            return
        deepest = max(deepest, depth)
        top = 24 + depth * ROW
        share = "%s: %d samples, %.1f %%" % (name, frame.samples, 100 * frame.samples / max(root.samples, 1))
        text = name if len(name) * 6.2 < width else name[:int(width / 6.2) - 1] + "…" if width > 30 else ""
        parts.append('<g><title>%s</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d">%s</text></g>' % (
            html.escape(share), left, top, max(width - 0.4, 0.2), ROW - 1, colour(name), left + 2, top + 11, html.escape(text)))
        for child_name, child in sorted(frame.children.items(), key=lambda kv: -kv[1].samples):
            draw(child, child_name, left, depth + 1)
            left += child.samples * scale
    draw(root, "all", 0, 0)
    return ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="monospace" font-size="10">'
            '<rect width="100%%" height="100%%" fill="#fffdf7"/><text x="4" y="15" font-size="13">%s (%d samples; orange is ours, grey the system)</text>%s</svg>\n') % (
        WIDTH, 32 + (deepest + 1) * ROW, html.escape(title), root.samples, "".join(parts))


def hottest(root, count=12):
    """Functions by the samples in which they were inmost."""
    own = {}

    def walk(frame, name):
        rest = frame.samples - sum(c.samples for c in frame.children.values())
        own[name] = own.get(name, 0) + rest
        for child_name, child in frame.children.items():
            walk(child, child_name)
    walk(root, "all")
    return sorted(((n, name) for name, n in own.items() if n), reverse=True)[:count]
