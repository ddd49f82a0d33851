//! Components of a lower resolution brought up to the image's, by triangle filters or by repeating
//! samples, with libjpeg's roundings: they alternate, so that no direction is favoured.

/// How one component is brought up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// It has the image's resolution.
    Same,
    /// Twice as wide, weights of 3 and 1.
    Wide,
    /// Twice as tall.
    Tall,
    /// Twice as wide and as tall.
    Both,
    /// Every sample repeated, so often across and down.
    Repeat([usize; 2]),
}

impl Method {
    /// For a component that has one sample for `[across, down]` pixels; `None` if that is not
    /// a whole number.
    pub(super) fn choose(
        inside: [usize; 2],
        outside: [usize; 2],
        fancy: bool,
        width: usize,
    ) -> Option<Method> {
        if inside.contains(&0)
            || !outside[0].is_multiple_of(inside[0])
            || !outside[1].is_multiple_of(inside[1])
        {
            return None;
        }
        // Where the filter needs a neighbour on either side.
        let broad = fancy && width > 2;
        Some(match [outside[0] / inside[0], outside[1] / inside[1]] {
            [1, 1] => Method::Same,
            [2, 1] if broad => Method::Wide,
            [1, 2] if fancy => Method::Tall,
            [2, 2] if broad => Method::Both,
            times => Method::Repeat(times),
        })
    }

    /// Whether rows above and below are needed.
    pub(super) fn has_context(self) -> bool {
        matches!(self, Method::Tall | Method::Both)
    }

    /// The component's row of an image's row, and the neighbour that is mixed in.
    pub(super) fn rows(self, y: usize, height: usize) -> [usize; 2] {
        let down = match self {
            Method::Same | Method::Wide => 1,
            Method::Tall | Method::Both => 2,
            Method::Repeat([_, down]) => down,
        };
        let near = y / down;
        let far = match (self.has_context(), y % 2) {
            (false, _) => near,
            (true, 0) => near.saturating_sub(1),
            (true, _) => near + 1,
        };
        [near, far].map(|row| row.min(height.saturating_sub(1)))
    }
}

/// Makes one row of the image from one or two of a component. `upper`: the neighbour is the row
/// above. `sums` is room for as many values as the component is wide.
pub(super) fn upsample(
    method: Method,
    near: &[u8],
    far: &[u8],
    upper: bool,
    sums: &mut [u16],
    out: &mut [u8],
) {
    match method {
        Method::Same => {
            let count = out.len().min(near.len());
            out[..count].copy_from_slice(&near[..count]);
        }
        Method::Wide => {
            for (sum, v) in sums.iter_mut().zip(near) {
                *sum = u16::from(*v);
            }
            widen::<2>(&sums[..near.len()], [1, 2], out);
        }
        Method::Tall => {
            let round = if upper { 1 } else { 2 };
            for ((to, a), b) in out.iter_mut().zip(near).zip(far) {
                *to = ((u16::from(*a) * 3 + u16::from(*b) + round) >> 2) as u8;
            }
        }
        Method::Both => {
            for ((sum, a), b) in sums.iter_mut().zip(near).zip(far) {
                *sum = u16::from(*a) * 3 + u16::from(*b);
            }
            widen::<4>(&sums[..near.len()], [8, 7], out);
        }
        Method::Repeat([1, _]) => {
            let count = out.len().min(near.len());
            out[..count].copy_from_slice(&near[..count]);
        }
        Method::Repeat([2, _]) => {
            let mut pairs = out.chunks_exact_mut(2);
            for (to, v) in pairs.by_ref().zip(near) {
                to.copy_from_slice(&[*v, *v]);
            }
            let rest = pairs.into_remainder();
            for (to, v) in rest.iter_mut().zip(near.last()) {
                *to = *v;
            }
        }
        Method::Repeat([across, _]) => {
            for (to, v) in out.chunks_mut(across).zip(near) {
                to.fill(*v);
            }
        }
    }
}

/// Two values for each: three quarters of it and one of its neighbour, divided by `1 << SHIFT`.
/// The ends are their own neighbours.
fn widen<const SHIFT: u16>(sums: &[u16], round: [u16; 2], out: &mut [u8]) {
    let Some(last) = sums.len().checked_sub(1) else {
        return;
    };
    let left = |i: usize, from: u16| ((sums[i] * 3 + from + round[0]) >> SHIFT) as u8;
    let right = |i: usize, from: u16| ((sums[i] * 3 + from + round[1]) >> SHIFT) as u8;
    let mut put = |i: usize, value: u8| {
        if let Some(to) = out.get_mut(i) {
            *to = value;
        }
    };
    put(0, left(0, sums[0]));
    put(1, right(0, sums[last.min(1)]));
    if last == 0 {
        return;
    }
    put(2 * last, left(last, sums[last - 1]));
    put(2 * last + 1, right(last, sums[last]));
    let (before, here, after) = (&sums[..last - 1], &sums[1..last], &sums[2..]);
    let around = here.iter().zip(before).zip(after);
    let room = out.len().clamp(2, 2 * last);
    let mut pairs = out[2..room].chunks_exact_mut(2);
    for (to, ((here, before), after)) in pairs.by_ref().zip(around) {
        let left = (here * 3 + before + round[0]) >> SHIFT;
        let right = (here * 3 + after + round[1]) >> SHIFT;
        to.copy_from_slice(&(left | right << 8).to_le_bytes());
    }
    // An odd width cuts a pair in two.
    if let [to] = pairs.into_remainder() {
        let i = room / 2;
        *to = ((sums[i] * 3 + sums[i - 1] + round[0]) >> SHIFT) as u8;
    }
}
