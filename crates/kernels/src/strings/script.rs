//! `UnicodeScript`: which script a code point belongs to, by ICU's numbers.

use super::script_table::SCRIPTS;
use downpour_runtime::{Built, Registry};

pub(super) fn register(r: &mut Registry) {
    r.add("UnicodeScript", |_| {
        Built::cheap(|ctx| {
            let mut points = ctx.take(0)?;
            for point in points.make_mut::<i32>()? {
                *point = script(*point);
            }
            ctx.set_output(0, points);
            Ok(())
        })
    });
}

/// ICU's number of a code point's script; -1 for what is no code point.
fn script(point: i32) -> i32 {
    match u32::try_from(point) {
        Ok(point) if point <= char::MAX as u32 => {
            let after = SCRIPTS.partition_point(|(first, _)| *first <= point);
            SCRIPTS
                .get(after.wrapping_sub(1))
                .map_or(-1, |(_, script)| (*script).into())
        }
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::{SCRIPTS, script};

    /// Numbers of TensorFlow 2.21.
    #[test]
    fn code_points_have_their_scripts() {
        for (point, expect) in [
            (i32::MIN, -1),
            (-1, -1),
            (0, 0),
            ('A' as i32, 25),
            ('z' as i32, 25),
            (0x7b, 0),
            (0x3b1, 14),
            (0x10_ffff, 103),
            (0x11_0000, -1),
        ] {
            assert_eq!(script(point), expect, "{point:#x}");
        }
        assert!(SCRIPTS.is_sorted_by(|a, b| a.0 < b.0));
    }
}
