//! Placement: which device runs each node. Requested devices may be partial; nodes that share a
//! reference or a resource, or ask for it by `_class`, go together.

use downpour_graph::{DeviceName, Edge, Graph, Node, NodeId, Result, Status};
use downpour_tensor::DType;
use std::collections::HashMap;
use std::sync::Arc;

/// The devices of a cluster as the placer sees them.
#[derive(Clone, Debug)]
pub struct Placement {
    /// All devices, the client's own first.
    pub devices: Vec<DeviceName>,
    /// Whether a device type or number that does not exist may be given up, and colocation where
    /// devices contradict it.
    pub allow_soft_placement: bool,
}

/// Gives every node of the graph the full name of a device. Nodes that have one keep it.
pub fn place(graph: &mut Graph, placement: &Placement) -> Result<()> {
    let mut groups = Groups::new(graph, placement)?;
    if let [_] = placement.devices.as_slice() {
        // Nowhere else to go: the requests only had to be possible.
        for (id, node) in graph.nodes() {
            groups.device(id, &node.name, placement)?;
        }
        return Ok(());
    }
    let mut chosen = Vec::with_capacity(graph.len());
    for (id, node) in graph.nodes() {
        chosen.push(groups.device(id, &node.name, placement)?);
    }
    follow_consumers(graph, &groups, &mut chosen);
    let names: Vec<Arc<str>> = placement
        .devices
        .iter()
        .map(|d| d.to_string().into())
        .collect();
    graph.assign_devices(|id| names[chosen[id.index()]].clone());
    Ok(())
}

/// Colocated nodes, as a union-find forest, with what each group asks for.
pub(crate) struct Groups {
    parent: Vec<NodeId>,
    pub(crate) wanted: HashMap<NodeId, DeviceName>,
}

impl Groups {
    pub(crate) fn new(graph: &Graph, placement: &Placement) -> Result<Groups> {
        let mut groups = Groups {
            parent: graph.nodes().map(|(id, _)| id).collect(),
            wanted: HashMap::new(),
        };
        for (id, node) in graph.nodes() {
            if !node.device.is_empty() {
                let wanted = parse(&node.device, &node.name)?;
                groups.wanted.insert(id, wanted);
            }
        }
        // First what holds state: its users must follow wherever they asked to be.
        for (id, node) in graph.nodes().filter(|(_, n)| !passes_handles(n)) {
            for (edge, (dtype, is_ref)) in node.inputs.iter().zip(&node.input_types) {
                let shares = *is_ref || matches!(dtype, DType::Resource | DType::Variant);
                if shares && may_share(graph, *edge) {
                    groups.follow(id, edge.node);
                }
            }
        }
        for (id, node) in graph.nodes() {
            for target in colocated_with(graph, node)? {
                groups.join(id, target, graph, placement)?;
            }
        }
        Ok(groups)
    }

    /// The node that stands for all that go with this one.
    pub(crate) fn root(&mut self, mut id: NodeId) -> NodeId {
        while self.parent[id.index()] != id {
            let above = self.parent[id.index()];
            self.parent[id.index()] = self.parent[above.index()];
            id = above;
        }
        id
    }

    /// Puts a user of state where the state is.
    fn follow(&mut self, user: NodeId, state: NodeId) {
        let (user, state) = (self.root(user), self.root(state));
        if user == state {
            return;
        }
        self.parent[user.index()] = state;
        if let Some(asked) = self.wanted.remove(&user) {
            let merged = match self.wanted.get(&state) {
                // What the state's own request leaves open, its users may say.
                Some(wanted) if wanted.intersects(&asked) => wanted.or(&asked),
                Some(wanted) => wanted.clone(),
                None => asked,
            };
            self.wanted.insert(state, merged);
        }
    }

    /// Puts two nodes together because one names the other.
    fn join(&mut self, a: NodeId, b: NodeId, graph: &Graph, placement: &Placement) -> Result<()> {
        let (root_a, root_b) = (self.root(a), self.root(b));
        if root_a == root_b {
            return Ok(());
        }
        let merged = match (self.wanted.get(&root_a), self.wanted.get(&root_b)) {
            (Some(x), Some(y)) => match merge(x, y) {
                Ok(merged) => Some(merged),
                Err(what) if placement.allow_soft_placement => {
                    if what == "types" || what == "ids" {
                        let relaxed = |d: &DeviceName| DeviceName {
                            kind: None,
                            id: None,
                            ..d.clone()
                        };
                        merge(&relaxed(x), &relaxed(y)).ok()
                    } else {
                        // Contradicting tasks: each stays where it asked to be.
                        return Ok(());
                    }
                }
                Err(what) => {
                    let (a, b) = (&graph.node(a).name, &graph.node(b).name);
                    return Err(Status::invalid_argument(format!(
                        "Cannot colocate nodes {{{{colocation_node {a}}}}} and {{{{colocation_node {b}}}}}: Cannot merge devices with incompatible {what}: '{x}' and '{y}'\n\t [[{{{{node {a}}}}}]]"
                    )));
                }
            },
            (x, y) => x.or(y).cloned(),
        };
        self.parent[root_a.index()] = root_b;
        self.wanted.remove(&root_a);
        if let Some(merged) = merged {
            self.wanted.insert(root_b, merged);
        }
        Ok(())
    }

    /// The device of a node, as an index into [`Placement::devices`].
    fn device(&mut self, id: NodeId, node: &str, placement: &Placement) -> Result<usize> {
        let root = self.root(id);
        match self.wanted.get(&root) {
            Some(wanted) => find_device(wanted, node, placement),
            None => Ok(0),
        }
    }

    /// Whether a node neither asked for a device nor goes with others.
    fn is_free(&self, id: NodeId) -> bool {
        self.parent[id.index()] == id && !self.wanted.contains_key(&id)
    }
}

/// Ops that hand handles of several devices on without using them.
fn passes_handles(node: &Node) -> bool {
    let op = node.op_name();
    matches!(
        op,
        "IdentityN" | "PartitionedCall" | "StatefulPartitionedCall"
    )
}

/// State travels as a handle within its device. A list is a variant too, but a value.
fn may_share(graph: &Graph, edge: Edge) -> bool {
    let node = graph.node(edge.node);
    let (dtype, is_ref) = node.output_types[edge.output as usize];
    is_ref || dtype == DType::Resource || node.op_name().contains("Dataset")
}

fn colocated_with(graph: &Graph, node: &Node) -> Result<Vec<NodeId>> {
    if node.attrs.find("_class").is_none() {
        return Ok(Vec::new());
    }
    let mut targets = Vec::new();
    for class in node.attrs.byte_strings("_class")? {
        let Some(target) = class.strip_prefix(b"loc:@") else {
            continue;
        };
        let target = String::from_utf8_lossy(target);
        match graph.find(&target) {
            Some(id) => targets.push(id),
            None => {
                return Err(Status::invalid_argument(format!(
                    "'{}' is colocated with unknown node: {target}",
                    node.name
                )));
            }
        }
    }
    Ok(targets)
}

/// What two requests ask together, or what they disagree on.
fn merge(a: &DeviceName, b: &DeviceName) -> Result<DeviceName, &'static str> {
    fn differ<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
        matches!((a, b), (Some(a), Some(b)) if a != b)
    }
    if differ(&a.job, &b.job) {
        return Err("jobs");
    }
    if differ(&a.replica, &b.replica) {
        return Err("replicas");
    }
    if differ(&a.task, &b.task) {
        return Err("tasks");
    }
    if differ(&a.kind, &b.kind) {
        return Err("types");
    }
    if differ(&a.id, &b.id) {
        return Err("ids");
    }
    Ok(a.or(b))
}

/// Constants and the like run where their only users are, so that they need not travel.
fn follow_consumers(graph: &Graph, groups: &Groups, chosen: &mut [usize]) {
    let mut users: Vec<Option<usize>> = vec![None; graph.len()];
    let mut mixed = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        for edge in &node.inputs {
            let user = users[edge.node.index()].get_or_insert(chosen[id.index()]);
            mixed[edge.node.index()] |= *user != chosen[id.index()];
        }
    }
    for (id, node) in graph.nodes() {
        let generates = node.inputs.is_empty()
            && node.control_inputs.is_empty()
            && node.output_types.len() == 1
            && !node.op.stateful;
        if generates
            && groups.is_free(id)
            && !mixed[id.index()]
            && let Some(device) = users[id.index()]
        {
            chosen[id.index()] = device;
        }
    }
}

fn parse(requested: &str, node: &str) -> Result<DeviceName> {
    DeviceName::parse(requested).map_err(|_| {
        let shown: String = requested.chars().take(200).collect();
        Status::invalid_argument(format!(
            "Malformed device specification '{shown}' in node: {{{{node {node}}}}}"
        ))
    })
}

fn find_device(wanted: &DeviceName, node: &str, placement: &Placement) -> Result<usize> {
    let find = |wanted: &DeviceName| placement.devices.iter().position(|d| wanted.intersects(d));
    if let Some(found) = find(wanted) {
        return Ok(found);
    }
    let mut wanted = wanted.clone();
    if placement.allow_soft_placement {
        wanted.kind = None;
        wanted.id = None;
        if let Some(found) = find(&wanted) {
            return Ok(found);
        }
    }
    let mut list: Vec<String> = placement.devices.iter().map(ToString::to_string).collect();
    list.sort();
    let gpu = match wanted.kind.as_deref() {
        Some("GPU") => " The requested device appears to be a GPU, but CUDA is not enabled.",
        _ => "",
    };
    Err(Status::invalid_argument(format!(
        "Cannot assign a device for operation {node}: {{{{node {node}}}}} was explicitly assigned to {wanted} but available devices are [ {} ]. Make sure the device specification refers to a valid device.{gpu}\n\t [[{node}]]",
        list.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::{GraphDef, NodeDef};

    fn placed(device: &str, soft: bool) -> Result<()> {
        let def = NodeDef {
            name: "n".into(),
            op: "NoOp".into(),
            device: device.into(),
            ..Default::default()
        };
        let mut graph = Graph::new(GraphDef {
            nodes: vec![def],
            ..Default::default()
        })?;
        let local = DeviceName::parse("/job:localhost/replica:0/task:0/device:CPU:0").unwrap();
        place(
            &mut graph,
            &Placement {
                devices: vec![local],
                allow_soft_placement: soft,
            },
        )
    }

    #[test]
    fn partial_names_match_and_unknown_devices_are_named() {
        for good in [
            "",
            "/cpu:0",
            "/job:localhost",
            "/job:localhost/task:0/device:CPU:0",
        ] {
            placed(good, false).unwrap();
        }
        let e = placed("/device:GPU:0", false).unwrap_err();
        assert_eq!(
            e.message,
            "Cannot assign a device for operation n: {{node n}} was explicitly assigned to /device:GPU:0 but available devices are [ /job:localhost/replica:0/task:0/device:CPU:0 ]. Make sure the device specification refers to a valid device. The requested device appears to be a GPU, but CUDA is not enabled.\n\t [[n]]"
        );
        placed("/device:GPU:0", true).unwrap();
        assert!(placed("/job:ps/device:GPU:0", true).is_err());
        assert!(
            placed("/job:../", true)
                .unwrap_err()
                .message
                .contains("Malformed device")
        );
    }

    /// `name op device class inputs…` per line, `-` for none; places over two ps and a worker.
    fn cluster(text: &str, soft: bool) -> Result<Vec<String>> {
        let nodes = text
            .lines()
            .map(|line| {
                let mut words = line.split_whitespace().map(str::to_owned);
                let mut next = || words.next().unwrap();
                let (name, op, device, class) = (next(), next(), next(), next());
                let mut def = NodeDef {
                    name,
                    inputs: words.collect(),
                    ..Default::default()
                };
                if device != "-" {
                    def.device = device;
                }
                if class != "-" {
                    let list = downpour_graph::AttrList::Str(vec![format!("loc:@{class}").into()]);
                    def.attrs
                        .set("_class", downpour_graph::AttrValue::List(list));
                }
                let float = if op.starts_with("Var") || op == "Placeholder" {
                    "dtype"
                } else {
                    "T"
                };
                def.attrs.set(float, DType::Float);
                if op.starts_with("VariableV2") {
                    let shape = downpour_tensor::PartialShape::default();
                    def.attrs
                        .set("shape", downpour_graph::AttrValue::Shape(shape));
                }
                def.op = op;
                def
            })
            .collect();
        let mut graph = Graph::new(GraphDef {
            nodes,
            ..Default::default()
        })?;
        let device =
            |task: &str| DeviceName::parse(&format!("/job:{task}/replica:0/device:CPU:0")).unwrap();
        let placement = Placement {
            devices: vec![device("w/task:0"), device("ps/task:0"), device("ps/task:1")],
            allow_soft_placement: soft,
        };
        place(&mut graph, &placement)?;
        let short = |d: &str| d.replace("/replica:0", "").replace("/device:CPU:0", "");
        Ok(graph.nodes().map(|(_, n)| short(&n.device)).collect())
    }

    #[test]
    fn users_of_a_variable_go_where_it_is_and_free_nodes_stay_with_the_client() {
        let text = "v VariableV2 /job:ps/task:1 -\nx Placeholder - -\na Assign /job:w - v x\nr Identity - v v\nn Neg - - x";
        assert_eq!(
            cluster(text, false).unwrap(),
            [
                "/job:ps/task:1",
                "/job:w/task:0",
                "/job:ps/task:1",
                "/job:ps/task:1",
                "/job:w/task:0"
            ]
        );
    }

    #[test]
    fn colocation_against_requested_devices_is_named_or_given_up() {
        let text = "a Placeholder /job:ps/task:0 -\nb Identity /job:w/task:0 a a";
        let e = cluster(text, false).unwrap_err();
        assert_eq!(
            e.message,
            "Cannot colocate nodes {{colocation_node b}} and {{colocation_node a}}: Cannot merge devices with incompatible jobs: '/job:w/task:0' and '/job:ps/task:0'\n\t [[{{node b}}]]"
        );
        assert_eq!(
            cluster(text, true).unwrap(),
            ["/job:ps/task:0", "/job:w/task:0"]
        );
    }
}
