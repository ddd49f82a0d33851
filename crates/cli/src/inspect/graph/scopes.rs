//! A graph seen by its name scopes: which are opened, which are one box, and which boxes are
//! joined. What a drawing shows is decided here; where it stands is `layout`'s matter.

use super::summary::parameters;
use anyhow::{Result, bail};
use downpour_graph::NodeDef;
use std::collections::{BTreeMap, HashMap};

/// Boxes that a drawing may have to be readable, and to be drawn at all.
const READABLE: usize = 60;
const MAX_BOXES: usize = 3000;
/// Scopes inside scopes that are told apart.
const MAX_DEPTH: usize = 32;

/// A name scope, or a node, or both: `w` is a variable and the scope of `w/read`.
pub(super) struct Scope {
    /// Its last part.
    pub(super) name: String,
    /// Its whole name.
    pub(super) full: String,
    pub(super) parent: usize,
    pub(super) depth: usize,
    pub(super) children: Vec<usize>,
    /// The op, if it is a node.
    pub(super) op: Option<String>,
    /// Nodes in it, itself included.
    pub(super) nodes: usize,
    /// Values of its variables.
    pub(super) parameters: u64,
    /// How many of its nodes are on each device.
    pub(super) devices: BTreeMap<String, usize>,
    /// Where its nodes stand in the file on average, which is about the order in which they run.
    pub(super) rank: f64,
    /// Whether its children are shown.
    pub(super) open: bool,
}

/// Edges between two boxes.
#[derive(Clone, Copy, Default)]
pub(super) struct Joint {
    pub(super) tensors: usize,
    pub(super) controls: usize,
}

/// What a drawing shows. Scope 0 is the graph itself.
pub(super) struct View {
    pub(super) scopes: Vec<Scope>,
    /// Edges between children of one open scope: (scope, from, to).
    pub(super) joints: BTreeMap<(usize, usize, usize), Joint>,
    /// Edges between boxes, wherever they stand.
    pub(super) direct: BTreeMap<(usize, usize), Joint>,
}

impl View {
    /// Opens scopes down to `depth`, or as deep as the drawing stays readable.
    pub(super) fn new(nodes: &[&NodeDef], depth: Option<usize>) -> Result<View> {
        if nodes.is_empty() {
            bail!("there are no nodes to draw");
        }
        let (mut scopes, place) = tree(nodes);
        let depth = match depth {
            Some(0) => bail!("--depth is 0; it must be at least 1"),
            Some(depth) => depth,
            None => {
                let fits = |d: &usize| visible(&scopes, *d) <= READABLE;
                (1..MAX_DEPTH).take_while(fits).last().unwrap_or(1)
            }
        };
        let boxes = visible(&scopes, depth);
        if boxes > MAX_BOXES {
            bail!(
                "a drawing of {boxes} boxes would show nothing; choose a part with --scope, or a smaller --depth"
            );
        }
        for scope in &mut scopes {
            scope.open = scope.depth < depth && !scope.children.is_empty();
        }
        let mut view = View {
            scopes,
            joints: BTreeMap::new(),
            direct: BTreeMap::new(),
        };
        view.join(nodes, &place);
        Ok(view)
    }

    /// Boxes that are shown.
    pub(super) fn boxes(&self) -> usize {
        let shown = self.scopes.iter().skip(1);
        shown
            .filter(|s| !s.open && self.scopes[s.parent].open)
            .count()
    }

    /// The box in which a scope is seen: the outermost closed one around it.
    fn seen_in(&self, scope: usize) -> usize {
        let mut seen = scope;
        let mut at = scope;
        while at != 0 {
            at = self.scopes[at].parent;
            if !self.scopes[at].open {
                seen = at;
            }
        }
        seen
    }

    fn join(&mut self, nodes: &[&NodeDef], place: &[usize]) {
        let names: HashMap<&str, usize> = nodes
            .iter()
            .enumerate()
            .map(|(i, n)| (n.name.as_str(), i))
            .collect();
        let seen: Vec<usize> = place.iter().map(|&s| self.seen_in(s)).collect();
        for (to, node) in nodes.iter().enumerate() {
            for input in &node.inputs {
                let is_control = input.starts_with('^');
                let name = input.trim_start_matches('^');
                let name = name.split(':').next().unwrap_or(name);
                let Some(&from) = names.get(name) else {
                    continue;
                };
                let (a, b) = (seen[from], seen[to]);
                if a == b {
                    continue;
                }
                let add = |joint: &mut Joint| match is_control {
                    true => joint.controls += 1,
                    false => joint.tensors += 1,
                };
                add(self.direct.entry((a, b)).or_default());
                let (parent, a, b) = self.meet(a, b);
                if a != b {
                    add(self.joints.entry((parent, a, b)).or_default());
                }
            }
        }
    }

    /// The innermost scope around two boxes, and its children that hold them.
    fn meet(&self, mut a: usize, mut b: usize) -> (usize, usize, usize) {
        while self.scopes[a].depth > self.scopes[b].depth {
            a = self.scopes[a].parent;
        }
        while self.scopes[b].depth > self.scopes[a].depth {
            b = self.scopes[b].parent;
        }
        while self.scopes[a].parent != self.scopes[b].parent {
            a = self.scopes[a].parent;
            b = self.scopes[b].parent;
        }
        (self.scopes[a].parent, a, b)
    }
}

/// How many boxes there are if scopes are opened down to `depth`.
fn visible(scopes: &[Scope], depth: usize) -> usize {
    let shown = scopes.iter().skip(1);
    shown
        .filter(|s| s.depth == depth || s.depth < depth && s.children.is_empty())
        .count()
}

/// All scopes, and which is each node's own.
fn tree(nodes: &[&NodeDef]) -> (Vec<Scope>, Vec<usize>) {
    let mut made = Tree::default();
    made.add("", "", 0, 0);
    let mut place = Vec::with_capacity(nodes.len());
    for (i, node) in nodes.iter().enumerate() {
        place.push(made.node(i, node));
    }
    let Tree { mut scopes, .. } = made;
    // A node that is a scope too stands in that scope once it is open.
    for place in &mut place {
        let scope = &mut scopes[*place];
        if let (Some(op), false) = (scope.op.clone(), scope.children.is_empty()) {
            scope.op = None;
            let own = Scope {
                name: format!("({})", scope.name),
                full: scope.full.clone(),
                parent: *place,
                depth: scope.depth + 1,
                children: Vec::new(),
                op: Some(op),
                nodes: 1,
                parameters: scope.parameters,
                devices: BTreeMap::new(),
                rank: 0.0,
                open: false,
            };
            let id = scopes.len();
            scopes[*place].children.push(id);
            scopes.push(own);
            *place = id;
        }
    }
    // Figures go up to all scopes around a node.
    for scope in &mut scopes {
        (scope.nodes, scope.parameters, scope.rank) = (0, 0, 0.0);
        scope.devices.clear();
    }
    for (i, node) in nodes.iter().enumerate() {
        let mut at = place[i];
        loop {
            let scope = &mut scopes[at];
            scope.nodes += 1;
            scope.parameters = scope.parameters.saturating_add(parameters(node));
            scope.rank += i as f64;
            *scope.devices.entry(node.device.clone()).or_default() += 1;
            if at == 0 {
                break;
            }
            at = scope.parent;
        }
    }
    for scope in &mut scopes {
        scope.rank /= scope.nodes.max(1) as f64;
    }
    (scopes, place)
}

#[derive(Default)]
struct Tree {
    scopes: Vec<Scope>,
    known: HashMap<String, usize>,
}

impl Tree {
    fn add(&mut self, name: &str, full: &str, parent: usize, depth: usize) -> usize {
        let id = self.scopes.len();
        self.scopes.push(Scope {
            name: name.to_owned(),
            full: full.to_owned(),
            parent,
            depth,
            children: Vec::new(),
            op: None,
            nodes: 0,
            parameters: 0,
            devices: BTreeMap::new(),
            rank: 0.0,
            open: false,
        });
        if id > 0 {
            self.scopes[parent].children.push(id);
            self.known.insert(full.to_owned(), id);
        }
        id
    }

    /// The scope of a node, made with all around it.
    fn node(&mut self, index: usize, node: &NodeDef) -> usize {
        let mut at = 0;
        let mut end = 0;
        // What lies deeper than anybody draws stays together.
        for part in node.name.splitn(MAX_DEPTH, '/') {
            end += part.len() + usize::from(end > 0);
            let full = &node.name[..end.min(node.name.len())];
            at = match self.known.get(full) {
                Some(&known) => known,
                None => self.add(part, full, at, self.scopes[at].depth + 1),
            };
        }
        if self.scopes[at].op.is_some() || at == 0 {
            // A name that comes twice, or none: not a graph that runs, but one that can be drawn.
            let full = format!("{}#{index}", node.name);
            at = self.add(
                &full,
                &full,
                self.scopes[at].parent,
                self.scopes[at].depth.max(1),
            );
        }
        self.scopes[at].op = Some(node.op.clone());
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> Vec<NodeDef> {
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            NodeDef {
                name: words.next().unwrap().to_owned(),
                op: words.next().unwrap().to_owned(),
                inputs: words.map(str::to_owned).collect(),
                ..Default::default()
            }
        };
        text.lines()
            .filter(|l| !l.trim().is_empty())
            .map(line)
            .collect()
    }

    fn joints(view: &View) -> Vec<String> {
        let name = |i: usize| view.scopes[i].full.clone();
        let each = view.joints.iter();
        each.map(|((p, a, b), j)| {
            format!(
                "{}: {}>{} {}+{}",
                name(*p),
                name(*a),
                name(*b),
                j.tensors,
                j.controls
            )
        })
        .collect()
    }

    const TEXT: &str = "
        x Placeholder
        net/w VariableV2
        net/w/read Identity net/w
        net/mul MatMul x net/w/read:0
        loss Mean net/mul ^net/w";

    #[test]
    fn edges_are_drawn_where_scopes_meet() {
        let all = nodes(TEXT);
        let all: Vec<&NodeDef> = all.iter().collect();
        let view = View::new(&all, Some(1)).unwrap();
        assert_eq!(joints(&view), [": x>net 1+0", ": net>loss 1+1"]);
        assert_eq!(view.boxes(), 3);
        let view = View::new(&all, Some(2)).unwrap();
        assert_eq!(
            joints(&view),
            [": x>net 1+0", ": net>loss 1+1", "net: net/w>net/mul 1+0"]
        );
        // As deep as it goes: the variable stands in its own scope.
        let view = View::new(&all, None).unwrap();
        assert_eq!(view.boxes(), 5);
        assert!(
            view.scopes
                .iter()
                .any(|s| s.name == "(w)" && s.op.is_some())
        );
    }

    #[test]
    fn odd_names_are_drawn_too() {
        let mut all = nodes("a NoOp\na NoOp\n/ NoOp\n// NoOp\na/b NoOp ^a ^nowhere");
        all.push(NodeDef::default());
        all.push(NodeDef {
            name: "é/ü".into(),
            op: "NoOp".into(),
            ..Default::default()
        });
        all.push(NodeDef {
            name: "x/".repeat(500),
            op: "NoOp".into(),
            ..Default::default()
        });
        let all: Vec<&NodeDef> = all.iter().collect();
        let view = View::new(&all, None).unwrap();
        assert!(view.boxes() >= 5);
        assert_eq!(view.scopes[0].nodes, 8);
        assert!(View::new(&[], None).is_err());
    }
}
