//! Small drawings in text: numbers with separators, bars, curves.

use std::collections::VecDeque;

/// `12,345`.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// How many a second, with a digit behind the point where that says something.
pub(crate) fn rate(number: f64) -> String {
    match number < 10.0 {
        // No speeds add up to a negative zero.
        true => format!("{:.1}", number.max(0.0) + 0.0),
        false => thousands(number),
    }
}

/// A bar of this width, so full.
pub(crate) fn bar(share: f64, width: usize) -> String {
    let share = if share.is_finite() {
        share.clamp(0.0, 1.0)
    } else {
        0.0
    };
    let full = (share * width as f64).round() as usize;
    "█".repeat(full) + &"░".repeat(width.saturating_sub(full))
}

/// A curve of this width; the highest value is the highest block.
pub(crate) fn curve(points: &VecDeque<(i64, f64)>, width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (Some((first, _)), Some((last, _))) = (points.front(), points.back()) else {
        return String::new();
    };
    let span = (last - first).max(1) as f64;
    let mut columns = vec![(0.0, 0u32); width];
    for (step, value) in points.iter().filter(|(_, v)| v.is_finite()) {
        let at = ((step - first) as f64 / span * width as f64) as usize;
        if let Some(column) = columns.get_mut(at.min(width.saturating_sub(1))) {
            *column = (column.0 + value, column.1 + 1);
        }
    }
    let means = columns
        .iter()
        .map(|(sum, n)| (*n > 0).then(|| sum / f64::from(*n)));
    let means: Vec<Option<f64>> = means.collect();
    let highest = means
        .iter()
        .flatten()
        .copied()
        .fold(f64::MIN_POSITIVE, f64::max);
    let lowest = means
        .iter()
        .flatten()
        .copied()
        .fold(f64::MAX, f64::min)
        .min(highest);
    let mut level = 0;
    let block = |mean: &Option<f64>| {
        if let Some(mean) = mean {
            let share = (mean - lowest) / (highest - lowest).max(f64::MIN_POSITIVE);
            level = ((share * 7.0).round() as usize).min(7);
        }
        BLOCKS[level]
    };
    means.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bars() {
        let shown = [0.0, 999.0, 1000.0, 1234567.4].map(thousands);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [-0.0, 3.12, 9.96, 1234.0].map(rate),
            ["0.0", "3.1", "10.0", "1,234"]
        );
        assert_eq!(bar(0.5, 4), "██░░");
        assert_eq!((bar(f64::NAN, 2), bar(7.0, 2)), ("░░".into(), "██".into()));
    }

    #[test]
    fn a_falling_loss_is_a_falling_curve() {
        let points: VecDeque<_> = (0..8).map(|i| (i, 8.0 - i as f64)).collect();
        assert_eq!(curve(&points, 8), "█▇▆▅▄▃▂▁");
        assert_eq!(curve(&VecDeque::new(), 8), "");
        let odd: VecDeque<_> = [(0, f64::NAN), (0, f64::INFINITY), (5, 1.0)].into();
        assert_eq!(curve(&odd, 3).chars().count(), 3);
        assert_eq!(curve(&odd, 0), "");
    }
}
