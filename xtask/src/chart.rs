//! A line chart as SVG, for pages of the book that are written from real runs.

use std::fmt::Write as _;

/// One line of a chart.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// What a chart shows.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// Where the vertical axis begins and ends.
    pub(crate) range: (f64, f64),
    /// Names of the positions 0, 1, … instead of numbers.
    pub(crate) places: Vec<String>,
    pub(crate) series: Vec<Series>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 55.0;
/// Lines across.
const TICKS: u32 = 5;

impl Chart {
    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let points = self.series.iter().flat_map(|s| &s.points);
        let end = points.map(|p| p.0).fold(f64::MIN_POSITIVE, f64::max);
        let x = |value: f64| LEFT + value / end * (WIDTH - LEFT - RIGHT);
        let (low, high) = self.range;
        let y = |value: f64| {
            let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
            HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        };
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        text(&mut out, (WIDTH / 2.0, 22.0), "middle", &self.title);
        text(&mut out, (WIDTH / 2.0, HEIGHT - 12.0), "middle", &self.x);
        text(&mut out, (8.0, TOP - 12.0), "start", &self.y);
        for tick in 0..=TICKS {
            let value = low + (high - low) * f64::from(tick) / f64::from(TICKS);
            let (at, to) = (y(value), WIDTH - RIGHT);
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT} {at:.1}H{to}\" stroke=\"#ddd\" fill=\"none\"/>"
            );
            text(&mut out, (LEFT - 8.0, at + 4.0), "end", &short(value));
        }
        let places: Vec<(f64, String)> = match self.places.is_empty() {
            true => (0..=TICKS)
                .map(|tick| end * f64::from(tick) / f64::from(TICKS))
                .map(|value| (value, short(value)))
                .collect(),
            false => (0u32..)
                .map(f64::from)
                .zip(self.places.iter().cloned())
                .collect(),
        };
        for (value, name) in places {
            text(
                &mut out,
                (x(value), HEIGHT - BOTTOM + 18.0),
                "middle",
                &name,
            );
        }
        for (i, series) in (0u32..).zip(&self.series) {
            let line: Vec<String> = series
                .points
                .iter()
                .map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1)))
                .collect();
            let colour = series.colour;
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" stroke=\"{colour}\" stroke-width=\"2\" fill=\"none\"/>",
                line.join(" ")
            );
            let at = HEIGHT - BOTTOM - 12.0 - 18.0 * f64::from(i);
            let (from, to) = (WIDTH - 230.0, WIDTH - 205.0);
            let _ = writeln!(
                out,
                "<path d=\"M{from} {:.1}H{to}\" stroke=\"{colour}\" stroke-width=\"3\"/>",
                at - 4.0
            );
            text(&mut out, (WIDTH - 198.0, at), "start", &series.name);
        }
        out + "</svg>\n"
    }
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}

/// As few digits as say it.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stay_within_the_picture_and_words_are_escaped() {
        let chart = Chart {
            title: "a < b & c".to_owned(),
            x: "s".to_owned(),
            y: "%".to_owned(),
            range: (0.0, 1.0),
            places: Vec::new(),
            series: vec![Series {
                name: "one".to_owned(),
                colour: "red",
                points: vec![(0.0, -5.0), (2.0, 7.0)],
            }],
        };
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b &amp; c"), "{svg}");
        assert!(svg.contains("points=\"70.0,345.0 700.0,40.0\""), "{svg}");
    }
}
