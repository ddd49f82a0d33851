//! A line search with strong Wolfe conditions, as a state machine: values along the line in, the
//! next step to try out. It is Moré and Thuente's ("Line search algorithms with guaranteed
//! sufficient decrease", 1994): a bracket, cubic and quadratic interpolation inside it, and the
//! modified function of its first stage. Called by [`super::machine`].
//!
//! Invariant: knows neither vectors nor a cluster; its whole state is fifteen numbers, so that a
//! search goes on where it was after its coordinator was killed.

/// When a step is good enough, and how many may be tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wolfe {
    /// Sufficient decrease: at least this part of what the slope promises.
    pub(super) decrease: f64,
    /// Curvature: at most this part of the slope is left.
    pub(super) curvature: f64,
    /// Width of the bracket, relative to its end, that is not made smaller.
    pub(super) width: f64,
    /// Most values to ask for.
    pub(super) trials: u32,
}

/// Longest step.
const LONGEST: f64 = 1e10;
/// How far beyond a step that is too short the next may lie, in lengths of the last.
const FURTHER: (f64, f64) = (1.1, 4.0);
/// The bracket must shrink to this part in two trials, or it is halved.
const SHRINK: f64 = 0.66;

/// A point of the line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Point {
    step: f64,
    value: f64,
    slope: f64,
}

/// A search under way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Search {
    start: Point,
    /// Best so far.
    best: Point,
    /// The other end of the bracket.
    other: Point,
    bracketed: bool,
    /// Until a step with sufficient decrease and a rising slope is found.
    first_stage: bool,
    /// Where the next step must lie.
    low: f64,
    high: f64,
    widths: (f64, f64),
    step: f64,
    tried: u32,
}

/// What comes of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Another step is to be tried: [`Search::step`].
    Goes,
    /// The step is taken.
    Found,
    /// No step is good enough.
    Failed,
}

impl Search {
    /// Begins at a point with this value and a slope below zero; the first step to try.
    pub(super) fn new(value: f64, slope: f64, step: f64) -> Search {
        let start = Point {
            step: 0.0,
            value,
            slope,
        };
        Search {
            start,
            best: start,
            other: start,
            bracketed: false,
            first_stage: true,
            low: 0.0,
            high: step + FURTHER.1 * step,
            widths: (LONGEST, 2.0 * LONGEST),
            step: step.min(LONGEST),
            tried: 0,
        }
    }

    /// The step to try.
    pub(super) fn step(&self) -> f64 {
        self.step
    }

    /// Value and slope where it began.
    pub(super) fn start(&self) -> (f64, f64) {
        (self.start.value, self.start.slope)
    }

    /// Takes the value and the slope at [`Search::step`].
    pub(super) fn tell(&mut self, wolfe: &Wolfe, value: f64, slope: f64) -> Verdict {
        self.tried += 1;
        if !value.is_finite() || !slope.is_finite() {
            return self.shorten(wolfe);
        }
        let at = Point {
            step: self.step,
            value,
            slope,
        };
        let promised = wolfe.decrease * self.start.slope;
        let bound = self.start.value + at.step * promised;
        if self.first_stage && value <= bound && slope >= 0.0 {
            self.first_stage = false;
        }
        if value <= bound && slope.abs() <= wolfe.curvature * -self.start.slope {
            return Verdict::Found;
        }
        let stuck = self.bracketed
            && (at.step <= self.low
                || at.step >= self.high
                || self.high - self.low <= wolfe.width * self.high);
        let ends = stuck
            || self.tried >= wolfe.trials
            || (at.step >= LONGEST && value <= bound && slope <= promised);
        if ends {
            // Not as good as asked for, but lower: rounding allows no better.
            return match at.step > 0.0 && (value <= bound || value < self.start.value) {
                true => Verdict::Found,
                false => Verdict::Failed,
            };
        }
        if self.first_stage && value <= self.best.value && value > bound {
            let bend = |p: Point, by: f64| Point {
                value: p.value - by * p.step,
                slope: p.slope - by,
                ..p
            };
            self.best = bend(self.best, promised);
            self.other = bend(self.other, promised);
            self.interpolate(bend(at, promised));
            self.best = bend(self.best, -promised);
            self.other = bend(self.other, -promised);
        } else {
            self.interpolate(at);
        }
        self.limit(wolfe);
        Verdict::Goes
    }

    /// The function has no value there: the step is at most half as long.
    fn shorten(&mut self, wolfe: &Wolfe) -> Verdict {
        if self.tried >= wolfe.trials {
            return Verdict::Failed;
        }
        self.high = self.step;
        self.step = self.best.step + 0.5 * (self.step - self.best.step);
        match self.step > self.best.step && self.step < self.high {
            true => Verdict::Goes,
            false => Verdict::Failed,
        }
    }

    /// Keeps the next step inside the bracket, which must shrink.
    fn limit(&mut self, wolfe: &Wolfe) {
        let (best, other) = (self.best.step, self.other.step);
        if self.bracketed {
            let width = (other - best).abs();
            if width >= SHRINK * self.widths.1 {
                self.step = best + 0.5 * (other - best);
            }
            self.widths = (width, self.widths.0);
            (self.low, self.high) = (best.min(other), best.max(other));
        } else {
            let length = self.step - best;
            self.low = self.step + FURTHER.0 * length;
            self.high = self.step + FURTHER.1 * length;
        }
        self.step = self.step.clamp(0.0, LONGEST);
        let outside = self.step <= self.low || self.step >= self.high;
        if self.bracketed && (outside || self.high - self.low <= wolfe.width * self.high) {
            self.step = best;
        }
    }

    /// Puts a point into the bracket and chooses the next step.
    fn interpolate(&mut self, at: Point) {
        let best = self.best;
        let turns = at.slope * best.slope.signum() < 0.0;
        let next = if at.value > best.value {
            // Higher: a minimum lies between. The cubic step if it is nearer to the best.
            self.bracketed = true;
            let cubic = cubic(best, at);
            let drop = (best.value - at.value) / (at.step - best.step) + best.slope;
            let quadratic = best.step + best.slope / drop / 2.0 * (at.step - best.step);
            match (cubic - best.step).abs() < (quadratic - best.step).abs() {
                true => cubic,
                false => cubic + (quadratic - cubic) / 2.0,
            }
        } else if turns {
            // Lower, and it rises: a minimum lies between. The step farther from here.
            self.bracketed = true;
            let (cubic, secant) = (cubic(at, best), secant(at, best));
            match (cubic - at.step).abs() > (secant - at.step).abs() {
                true => cubic,
                false => secant,
            }
        } else if at.slope.abs() < best.slope.abs() {
            self.beyond(at)
        } else if self.bracketed {
            cubic(at, self.other)
        } else if at.step > best.step {
            self.high
        } else {
            self.low
        };
        if at.value > best.value {
            self.other = at;
        } else {
            if turns {
                self.other = best;
            }
            self.best = at;
        }
        self.step = next;
    }

    /// Lower, and it falls less steeply: the minimum may lie beyond.
    fn beyond(&self, at: Point) -> f64 {
        let best = self.best;
        let forward = at.step > best.step;
        let (theta, gamma) = cubic_parts(at, best);
        let gamma = if forward { -gamma } else { gamma };
        let r = (gamma - at.slope + theta) / (gamma + (best.slope - at.slope) + gamma);
        let cubic = match (r < 0.0 && gamma != 0.0, forward) {
            (true, _) => at.step + r * (best.step - at.step),
            (false, true) => self.high,
            (false, false) => self.low,
        };
        let secant = secant(at, best);
        let nearer = (cubic - at.step).abs() < (secant - at.step).abs();
        if !self.bracketed {
            let next = if nearer { secant } else { cubic };
            return next.clamp(self.low.min(self.high), self.high.max(self.low));
        }
        let next = if nearer { cubic } else { secant };
        let most = at.step + SHRINK * (self.other.step - at.step);
        if forward {
            next.min(most)
        } else {
            next.max(most)
        }
    }

    /// The state as numbers, for [`Search::from_numbers`].
    pub(super) fn numbers(&self) -> [f64; SEARCH_NUMBERS] {
        let point = |p: &Point| [p.step, p.value, p.slope];
        let ([a, b, c], [d, e, f], [g, h, i]) =
            (point(&self.start), point(&self.best), point(&self.other));
        let flags = f64::from(u8::from(self.bracketed) + 2 * u8::from(self.first_stage));
        let (width, before) = self.widths;
        [
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            i,
            flags,
            self.low,
            self.high,
            width,
            before,
            self.step,
            f64::from(self.tried),
        ]
    }

    /// A search in the state that [`Search::numbers`] told.
    pub(super) fn from_numbers(numbers: &[f64; SEARCH_NUMBERS]) -> Search {
        let [
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            i,
            flags,
            low,
            high,
            width,
            before,
            step,
            tried,
        ] = *numbers;
        let point = |step, value, slope| Point { step, value, slope };
        let flags = flags as u8;
        Search {
            start: point(a, b, c),
            best: point(d, e, f),
            other: point(g, h, i),
            bracketed: flags & 1 != 0,
            first_stage: flags & 2 != 0,
            low,
            high,
            widths: (width, before),
            step,
            tried: tried as u32,
        }
    }
}

/// How many numbers a search is.
pub(super) const SEARCH_NUMBERS: usize = 16;

/// Terms of the cubic through two points with their slopes.
fn cubic_parts(a: Point, b: Point) -> (f64, f64) {
    let theta = 3.0 * (b.value - a.value) / (a.step - b.step) + a.slope + b.slope;
    let scale = theta.abs().max(a.slope.abs()).max(b.slope.abs());
    if scale == 0.0 {
        return (theta, 0.0);
    }
    let inside = (theta / scale).powi(2) - (a.slope / scale) * (b.slope / scale);
    (theta, scale * inside.max(0.0).sqrt())
}

/// The minimum of the cubic through two points, as a step from the first.
fn cubic(from: Point, to: Point) -> f64 {
    let (theta, gamma) = cubic_parts(to, from);
    let gamma = if to.step < from.step { -gamma } else { gamma };
    let p = gamma - from.slope + theta;
    let q = gamma - from.slope + gamma + to.slope;
    from.step + p / q * (to.step - from.step)
}

/// The minimum of the parabola with these slopes at two points.
fn secant(from: Point, to: Point) -> f64 {
    from.step + from.slope / (from.slope - to.slope) * (to.step - from.step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WOLFE: Wolfe = Wolfe {
        decrease: 1e-3,
        curvature: 0.1,
        width: 1e-9,
        trials: 30,
    };

    /// Searches along a function; the step, and how many values it took.
    fn search(f: impl Fn(f64) -> (f64, f64), first: f64) -> (Verdict, f64, u32) {
        let (value, slope) = f(0.0);
        let mut search = Search::new(value, slope, first);
        loop {
            // Every state must survive being written down.
            let again = Search::from_numbers(&search.numbers());
            assert_eq!(again, search);
            let (value, slope) = f(search.step());
            match search.tell(&WOLFE, value, slope) {
                Verdict::Goes => {}
                verdict => return (verdict, search.step(), search.tried),
            }
        }
    }

    /// Checks both conditions for first steps of very different lengths.
    fn check(f: impl Fn(f64) -> (f64, f64)) {
        let (value, slope) = f(0.0);
        for first in [1e-3, 0.1, 1.0, 10.0, 1e3] {
            let (verdict, step, tried) = search(&f, first);
            assert_eq!(verdict, Verdict::Found, "from {first}");
            let (there, slope_there) = f(step);
            assert!(there <= value + 1e-3 * step * slope, "from {first}: {step}");
            assert!(
                slope_there.abs() <= 0.1 * slope.abs(),
                "from {first}: {step}"
            );
            assert!(tried <= 20, "from {first}: {tried} values");
        }
    }

    #[test]
    fn a_parabola() {
        check(|t| ((t - 3.0).powi(2), 2.0 * (t - 3.0)));
    }

    // The first two functions of Moré and Thuente's paper.
    #[test]
    fn a_function_that_is_concave_beyond_its_minimum() {
        let b = 2.0;
        check(|t| {
            let d = t * t + b;
            (-t / d, (t * t - b) / (d * d))
        });
    }

    #[test]
    fn a_function_with_a_steep_minimum() {
        let b = 0.004;
        check(|t| {
            let u = t + b;
            (
                u.powi(5) - 2.0 * u.powi(4),
                5.0 * u.powi(4) - 8.0 * u.powi(3),
            )
        });
    }

    #[test]
    fn a_function_without_values_far_away() {
        let f = |t: f64| match t < 2.0 {
            true => (t * t - t, 2.0 * t - 1.0),
            false => (f64::NAN, f64::NAN),
        };
        let (verdict, step, _) = search(f, 100.0);
        assert_eq!(verdict, Verdict::Found);
        assert!((0.45..0.55).contains(&step), "{step}");
        let (verdict, _, tried) =
            search(|t| (if t > 0.0 { f64::INFINITY } else { 0.0 }, -1.0), 1.0);
        assert_eq!(verdict, Verdict::Failed);
        assert!(tried <= WOLFE.trials);
    }

    #[test]
    fn a_slope_that_lies_ends_the_search() {
        let (verdict, _, tried) = search(|t| (t, -1.0), 1.0);
        assert_eq!(verdict, Verdict::Failed);
        assert!(tried <= WOLFE.trials);
    }
}
