//! The same view in Graphviz's language: open scopes are clusters, boxes are nodes.

use super::scopes::View;
use super::svg::values;
use crate::inspect::output::count;
use std::fmt::Write;

/// The graph for `dot`.
pub(super) fn render(view: &View) -> String {
    let mut out = String::from(
        "digraph graph_ {\n  graph [fontname=\"monospace\", fontsize=10];\n  node [shape=box, style=rounded, fontname=\"monospace\", fontsize=10];\n  edge [color=gray40];\n",
    );
    scope(view, 0, 1, &mut out);
    for ((a, b), joint) in &view.direct {
        let mut style = String::new();
        if joint.tensors == 0 {
            style += " style=dashed";
        }
        if joint.tensors > 1 {
            let _ = write!(style, " label=\"{}\"", joint.tensors);
        }
        let _ = writeln!(out, "  n{a} -> n{b} [{}];", style.trim_start());
    }
    out.push_str("}\n");
    out
}

fn scope(view: &View, id: usize, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    for &child in &view.scopes[id].children {
        let s = &view.scopes[child];
        if s.open {
            let _ = writeln!(
                out,
                "{indent}subgraph cluster_{child} {{\n{indent}  label={};",
                quote(&s.name)
            );
            scope(view, child, depth + 1, out);
            let _ = writeln!(out, "{indent}}}");
            continue;
        }
        let mut label = s.name.clone();
        match &s.op {
            Some(op) if *op != s.name => label += &format!("\n{op}"),
            Some(_) => {}
            None => label += &format!("\n{}", count(s.nodes, "node")),
        }
        if s.parameters > 0 {
            label += &format!("\n{}", values(s.parameters));
        }
        let _ = writeln!(
            out,
            "{indent}n{child} [label={}, tooltip={}];",
            quote(&label),
            quote(&s.full)
        );
    }
}

/// A string of Graphviz's language.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::NodeDef;

    #[test]
    fn scopes_are_clusters_and_names_are_quoted() {
        let node = |name: &str, inputs: &[&str]| NodeDef {
            name: name.into(),
            op: "NoOp".into(),
            inputs: inputs.iter().map(|s| (*s).to_owned()).collect(),
            ..Default::default()
        };
        let nodes = [
            node("a/b", &[]),
            node("a/c", &["a/b"]),
            node("\"; x -> y", &["^a/c"]),
        ];
        let all: Vec<&NodeDef> = nodes.iter().collect();
        let text = render(&View::new(&all, Some(2)).unwrap());
        assert!(
            text.contains("subgraph cluster_1") && text.contains("label=\"a\""),
            "{text}"
        );
        assert!(text.contains("\"\\\"; x -> y\\nNoOp\""), "{text}");
        assert!(
            text.contains("n2 -> n3 [];") && text.contains("[style=dashed];"),
            "{text}"
        );
    }
}
