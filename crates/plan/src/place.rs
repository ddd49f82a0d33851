//! Placement: which device runs each node. Requested devices may be partial; colocation groups
//! (`_class`) must agree.

use downpour_graph::{DeviceName, Graph, NodeId, Result, Status};
use std::collections::HashMap;

/// The devices of a cluster as the placer sees them.
#[derive(Clone, Debug)]
pub struct Placement {
    /// All devices, the client's own first.
    pub devices: Vec<DeviceName>,
    /// Whether a device type or number that does not exist may be given up.
    pub allow_soft_placement: bool,
}

/// The device of each node, as an index into [`Placement::devices`].
pub fn place(graph: &Graph, placement: &Placement) -> Result<Vec<usize>> {
    let mut parsed: HashMap<&str, usize> = HashMap::new();
    let mut out = Vec::with_capacity(graph.len());
    for (id, node) in graph.nodes() {
        check_colocation(graph, id)?;
        let device = match parsed.get(&*node.device) {
            Some(&found) => found,
            None => {
                let found = find_device(&node.device, &node.name, placement)?;
                parsed.insert(&node.device, found);
                found
            }
        };
        out.push(device);
    }
    Ok(out)
}

fn check_colocation(graph: &Graph, id: NodeId) -> Result<()> {
    let node = graph.node(id);
    if node.attrs.find("_class").is_none() {
        return Ok(());
    }
    for class in node.attrs.byte_strings("_class")? {
        let Some(target) = class.strip_prefix(b"loc:@") else {
            continue;
        };
        let target = String::from_utf8_lossy(target);
        if graph.find(&target).is_none() {
            return Err(Status::invalid_argument(format!(
                "'{}' is colocated with unknown node: {target}",
                node.name
            )));
        }
    }
    Ok(())
}

fn find_device(requested: &str, node: &str, placement: &Placement) -> Result<usize> {
    let malformed = |_| {
        let shown: String = requested.chars().take(200).collect();
        Status::invalid_argument(format!(
            "Malformed device specification '{shown}' in node: {{{{node {node}}}}}"
        ))
    };
    let mut wanted = DeviceName::parse(requested).map_err(malformed)?;
    let find = |wanted: &DeviceName| placement.devices.iter().position(|d| wanted.intersects(d));
    if let Some(found) = find(&wanted) {
        return Ok(found);
    }
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

    fn placed(device: &str, soft: bool) -> Result<Vec<usize>> {
        let def = NodeDef {
            name: "n".into(),
            op: "NoOp".into(),
            device: device.into(),
            ..Default::default()
        };
        let graph = Graph::new(GraphDef {
            nodes: vec![def],
            ..Default::default()
        })?;
        let local = DeviceName::parse("/job:localhost/replica:0/task:0/device:CPU:0").unwrap();
        place(
            &graph,
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
            assert_eq!(placed(good, false).unwrap(), [0]);
        }
        let e = placed("/device:GPU:0", false).unwrap_err();
        assert_eq!(
            e.message,
            "Cannot assign a device for operation n: {{node n}} was explicitly assigned to /device:GPU:0 but available devices are [ /job:localhost/replica:0/task:0/device:CPU:0 ]. Make sure the device specification refers to a valid device. The requested device appears to be a GPU, but CUDA is not enabled.\n\t [[n]]"
        );
        assert_eq!(placed("/device:GPU:0", true).unwrap(), [0]);
        assert!(placed("/job:ps/device:GPU:0", true).is_err());
        assert!(
            placed("/job:../", true)
                .unwrap_err()
                .message
                .contains("Malformed device")
        );
    }
}
