//! The drawing: scopes as boxes in boxes, edges between them, colours for devices. One file without
//! scripts or anything from elsewhere, light and dark as the viewer is; names are text, never markup.

use super::layout::{Item, Placed, layout};
use super::scopes::{Joint, Scope, View};
use crate::inspect::output::{count, thousands};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Width of a character of the labels.
const CHAR: f64 = 7.3;
const LINE: f64 = 15.0;
const PAD: f64 = 9.0;
/// Head of an open scope: its name.
const HEAD: f64 = 22.0;
const MARGIN: f64 = 16.0;
/// Longest label; the whole name is shown when it is pointed at.
const MAX_LABEL: usize = 30;
/// Colours that people with any kind of colour sight tell apart (after Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a900",
];
const NO_DEVICE: &str = "#8a8f98";

const STYLE: &str = "\
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1c2128}
.s{fill:#57606a}.b{fill:#fff;stroke-width:1.6}.o{stroke-width:1.2;stroke-opacity:.55;fill:#6e7781;fill-opacity:.07}
.e{fill:none;stroke:#6e7781;stroke-opacity:.65}.c{stroke-dasharray:3 4}.u{stroke:#b35900;stroke-opacity:.8}
.bg{fill:#fff}.a{fill:#6e7781}.ua{fill:#b35900}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9da7b3}.b{fill:#1b2129}.bg{fill:#0d1117}
.e{stroke:#8b949e}.a{fill:#8b949e}.u{stroke:#f0a04b}.ua{fill:#f0a04b}}
";

/// The drawing as an SVG document.
pub(super) fn render(view: &View) -> String {
    let mut made = Drawing {
        view,
        colours: colours(view),
        placed: BTreeMap::new(),
        sizes: vec![(0.0, 0.0); view.scopes.len()],
        body: String::new(),
    };
    made.measure();
    let (width, height) = made.sizes[0];
    let legend = made.legend();
    let legend_width = legend
        .iter()
        .map(|(_, t)| t.chars().count() as f64 * CHAR + 40.0);
    let width = (width + 2.0 * MARGIN).max(legend_width.fold(0.0, f64::max) + MARGIN);
    let legend_top = height + 2.0 * MARGIN;
    let height = legend_top + legend.len() as f64 * LINE + MARGIN;
    made.draw(0, MARGIN, MARGIN);
    for (i, (mark, text)) in legend.iter().enumerate() {
        let y = legend_top + i as f64 * LINE;
        let _ = writeln!(
            made.body,
            "<g transform=\"translate({MARGIN} {y:.1})\">{mark}<text x=\"30\" y=\"4\" class=\"s\">{}</text></g>",
            escape(text)
        );
    }
    let title = format!(
        "{} in {} boxes",
        count(view.scopes[0].nodes, "node"),
        view.boxes()
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n<defs>{}{}</defs>\n<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
        arrow("h", "a"),
        arrow("hu", "ua"),
        made.body
    )
}

fn arrow(id: &str, class: &str) -> String {
    format!(
        "<marker id=\"{id}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"{class}\" d=\"M0 .5 8 4 0 7.5z\"/></marker>"
    )
}

/// A colour for each device, in the order of their names.
fn colours(view: &View) -> BTreeMap<String, &'static str> {
    let named = view.scopes[0].devices.keys().filter(|d| !d.is_empty());
    let mut made: BTreeMap<String, &str> = named
        .zip(COLOURS.iter().cycle())
        .map(|(d, c)| (d.clone(), *c))
        .collect();
    made.insert(String::new(), NO_DEVICE);
    made
}

struct Drawing<'a> {
    view: &'a View,
    colours: BTreeMap<String, &'static str>,
    /// Where the children of each open scope stand.
    placed: BTreeMap<usize, (Placed, Vec<Joint>)>,
    sizes: Vec<(f64, f64)>,
    body: String,
}

impl Drawing<'_> {
    /// Sizes of all boxes, inner ones first.
    fn measure(&mut self) {
        let mut order: Vec<usize> = (0..self.view.scopes.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(self.view.scopes[i].depth));
        let mut joints: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for (&(parent, a, b), &joint) in &self.view.joints {
            joints.entry(parent).or_default().push(((a, b), joint));
        }
        for i in order {
            let scope = &self.view.scopes[i];
            if !scope.open {
                let lines = lines(scope);
                let widest = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0);
                self.sizes[i] = (
                    widest as f64 * CHAR + 2.0 * PAD,
                    lines.len() as f64 * LINE + PAD,
                );
                continue;
            }
            let at: BTreeMap<usize, usize> = scope
                .children
                .iter()
                .enumerate()
                .map(|(n, &c)| (c, n))
                .collect();
            let items: Vec<Item> = scope
                .children
                .iter()
                .map(|&c| Item {
                    width: self.sizes[c].0,
                    height: self.sizes[c].1,
                    rank: self.view.scopes[c].rank,
                })
                .collect();
            let own = joints.remove(&i).unwrap_or_default();
            let edges: Vec<(usize, usize)> = own.iter().map(|((a, b), _)| (at[a], at[b])).collect();
            let placed = layout(&items, &edges);
            let head = label(&scope.name).chars().count() as f64 * CHAR + 2.0 * PAD;
            self.sizes[i] = match i {
                0 => (placed.width, placed.height),
                _ => (
                    (placed.width + 2.0 * PAD).max(head),
                    placed.height + HEAD + PAD,
                ),
            };
            self.placed
                .insert(i, (placed, own.into_iter().map(|(_, j)| j).collect()));
        }
    }

    /// Draws a scope whose upper left corner is at (x, y).
    fn draw(&mut self, i: usize, x: f64, y: f64) {
        let scope = &self.view.scopes[i];
        let (width, height) = self.sizes[i];
        let colour = self.colour(scope);
        let tip = escape(&tip(scope));
        if !scope.open {
            let round = if scope.op.is_some() { 4.0 } else { 11.0 };
            let _ = write!(
                self.body,
                "<g><title>{tip}</title><rect class=\"b\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"{round}\" stroke=\"{colour}\"/>"
            );
            for (n, line) in lines(scope).iter().enumerate() {
                let class = if n > 0 { " class=\"s\"" } else { "" };
                let (tx, ty) = (x + width / 2.0, y + PAD / 2.0 + 11.5 + n as f64 * LINE);
                let _ = write!(
                    self.body,
                    "<text x=\"{tx:.1}\" y=\"{ty:.1}\" text-anchor=\"middle\"{class}>{}</text>",
                    escape(line)
                );
            }
            self.body.push_str("</g>\n");
            return;
        }
        let (mut left, mut top) = (x, y);
        if i != 0 {
            let name = escape(&label(&scope.name));
            let _ = writeln!(
                self.body,
                "<g><title>{tip}</title><rect class=\"o\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"11\" stroke=\"{colour}\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"s\">{name}</text></g>",
                x + PAD,
                y + 15.0
            );
            let inner = self.placed.get(&i).map_or(0.0, |(p, _)| p.width);
            left = x + (width - inner) / 2.0;
            top = y + HEAD;
        }
        let Some((placed, joints)) = self.placed.remove(&i) else {
            return;
        };
        for ((route, joint), up) in placed.routes.iter().zip(&joints).zip(&placed.upward) {
            self.edge(route, *joint, *up, (left, top));
        }
        let children = self.view.scopes[i].children.clone();
        for (child, (cx, cy)) in children.into_iter().zip(placed.corners) {
            self.draw(child, left + cx, top + cy);
        }
    }

    fn edge(&mut self, route: &[(f64, f64)], joint: Joint, up: bool, (left, top): (f64, f64)) {
        let mut path = String::new();
        for (i, &(x, y)) in route.iter().enumerate() {
            let (x, y) = (x + left, y + top);
            let Some(&(px, py)) = i.checked_sub(1).and_then(|p| route.get(p)) else {
                let _ = write!(path, "M{x:.1} {y:.1}");
                continue;
            };
            let (px, py) = (px + left, py + top);
            let middle = (py + y) / 2.0;
            let _ = write!(
                path,
                "C{px:.1} {middle:.1} {x:.1} {middle:.1} {x:.1} {y:.1}"
            );
        }
        let class = match (joint.tensors, up) {
            (0, false) => "e c",
            (0, true) => "e c u",
            (_, false) => "e",
            (_, true) => "e u",
        };
        let width = 1.0 + (joint.tensors.max(1) as f64).log2() * 0.45;
        let head = if up { "hu" } else { "h" };
        let tip = match joint.controls {
            0 => count(joint.tensors, "tensor"),
            n => format!(
                "{}, {}",
                count(joint.tensors, "tensor"),
                count(n, "control edge")
            ),
        };
        let _ = writeln!(
            self.body,
            "<path class=\"{class}\" stroke-width=\"{width:.1}\" d=\"{path}\" marker-end=\"url(#{head})\"><title>{tip}</title></path>"
        );
    }

    /// The colour of the device that most of a scope's nodes are on; what may be anywhere does
    /// not count beside what may not.
    fn colour(&self, scope: &Scope) -> &'static str {
        let devices = scope.devices.iter();
        let most = devices.max_by_key(|(device, n)| (!device.is_empty(), **n));
        most.and_then(|(device, _)| self.colours.get(device))
            .copied()
            .unwrap_or(NO_DEVICE)
    }

    /// What the colours and lines mean: a mark and words.
    fn legend(&self) -> Vec<(String, String)> {
        const MAX_DEVICES: usize = 12;
        let mut out = Vec::new();
        let devices = &self.view.scopes[0].devices;
        if devices.len() > 1 || !devices.contains_key("") {
            for (device, nodes) in devices.iter().take(MAX_DEVICES) {
                let colour = self.colours.get(device).copied().unwrap_or(NO_DEVICE);
                let mark = format!(
                    "<rect class=\"b\" x=\"1\" y=\"-5\" width=\"20\" height=\"9\" rx=\"3\" stroke=\"{colour}\"/>"
                );
                let name = if device.is_empty() {
                    "any device"
                } else {
                    device
                };
                out.push((mark, format!("{name}: {}", count(*nodes, "node"))));
            }
            if devices.len() > MAX_DEVICES {
                out.push((
                    String::new(),
                    format!("… {} more devices", devices.len() - MAX_DEVICES),
                ));
            }
        }
        let line =
            |class: &str| format!("<path class=\"{class}\" d=\"M0 0H22\" stroke-width=\"1.4\"/>");
        out.push((line("e"), "tensors; wider where more pass".to_owned()));
        if self.view.joints.values().any(|j| j.tensors == 0) {
            out.push((line("e c"), "only control edges".to_owned()));
        }
        if self.placed.values().any(|(p, _)| p.upward.contains(&true)) {
            out.push((
                line("e u"),
                "back to something earlier (updates, loops)".to_owned(),
            ));
        }
        out
    }
}

/// What stands in a closed box.
fn lines(scope: &Scope) -> Vec<String> {
    let mut lines = vec![label(&scope.name)];
    match &scope.op {
        Some(op) if *op != scope.name => lines.push(label(op)),
        Some(_) => {}
        None => lines.push(count(scope.nodes, "node")),
    }
    if scope.parameters > 0 {
        lines.push(values(scope.parameters));
    }
    lines
}

/// How many values a scope's variables have.
pub(super) fn values(n: u64) -> String {
    match n {
        1 => "1 value".to_owned(),
        n => format!("{} values", thousands(n)),
    }
}

/// A name, shortened in its middle if it is long.
fn label(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= MAX_LABEL {
        return crate::refusal::clean(name);
    }
    let half = MAX_LABEL / 2;
    let front: String = chars[..half].iter().collect();
    let back: String = chars[chars.len() - half + 1..].iter().collect();
    crate::refusal::clean(&format!("{front}…{back}"))
}

fn tip(scope: &Scope) -> String {
    let mut text = scope.full.clone();
    if let Some(op) = &scope.op {
        text += &format!("\n{op}");
    }
    text += &format!("\n{}", count(scope.nodes, "node"));
    for (device, nodes) in scope.devices.iter().filter(|(d, _)| !d.is_empty()).take(4) {
        text += &format!("\n{device}: {nodes}");
    }
    text
}

/// Text as XML wants it. What XML cannot hold at all is left out.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push('\n'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::NodeDef;

    #[test]
    fn names_are_text_and_never_markup() {
        let node = |name: &str, inputs: &[&str]| NodeDef {
            name: name.into(),
            op: "<script>alert(1)</script>".into(),
            inputs: inputs.iter().map(|s| (*s).to_owned()).collect(),
            device: "\"/><x>".into(),
            ..Default::default()
        };
        let nodes = [
            node("a&b", &[]),
            node("</text><script>", &["a&b"]),
            node("\u{0}\u{1b}", &[]),
        ];
        let all: Vec<&NodeDef> = nodes.iter().collect();
        let drawn = render(&View::new(&all, None).unwrap());
        assert!(
            !drawn.contains("<script") && !drawn.contains("<x>") && !drawn.contains('\u{1b}'),
            "{drawn}"
        );
        assert!(drawn.contains("a&amp;b"));
        assert_eq!(
            drawn.matches("<g>").count(),
            drawn.matches("<title>").count() - 1
        );
    }

    #[test]
    fn long_names_are_shortened_in_the_middle() {
        let long = label(&"é".repeat(100));
        assert_eq!(long.chars().count(), MAX_LABEL);
        assert_eq!(label("short"), "short");
    }
}
