"""What the native rows are fed: the same numbers as benches/src/data.rs makes, bit for bit."""
import numpy as np

PIXELS = 784


class Draws:
    """Steele's SplitMix, many at a time."""

    def __init__(self, seed):
        self.state = seed

    def bits(self, count):
        with np.errstate(over="ignore"):
            steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            x = np.uint64(self.state) + steps
            self.state = int(x[-1]) if count else self.state
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return x ^ (x >> np.uint64(31))

    def uniform(self, count):
        return (self.bits(count) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)

    def below(self, count, limit):
        return (((self.bits(count) >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


def digits(batches, batch):
    """So many batches of images shaped like MNIST's: ten prototypes, each pixel half the prototype's and half noise."""
    draws = Draws(7)
    prototypes = draws.uniform(10 * PIXELS).reshape(10, PIXELS)
    made = []
    for _ in range(batches):
        labels = draws.below(batch, 10)
        noise = draws.uniform(batch * PIXELS).reshape(batch, PIXELS)
        half = np.float32(0.5)
        made.append((half * prototypes[labels] + half * noise, np.eye(10, dtype=np.float32)[labels]))
    return made


def row_numbers(batches, count, rows):
    draws = Draws(11)
    return [draws.below(count, rows) for _ in range(batches)]
