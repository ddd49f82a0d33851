//! Shortcuts: what a kernel can do better when it is given the nodes before it as well.

use crate::Device;
use crate::kernel::{KernelBuilder, OpContext};
use downpour_graph::{Edge, Graph, Node, NodeId, Result};
use std::sync::Arc;

/// Does what a group of nodes does; `false` if the inputs are not what it is for.
pub type Quick = Box<dyn Fn(&mut OpContext<'_>) -> Result<bool> + Send + Sync>;

/// Looks at a node and those before it; `None` if the node is to run by itself.
pub type Finder = fn(&Around<'_>) -> Option<Shortcut>;

/// Nodes that a node takes over. The runtime takes the offer only if nobody else uses their results.
pub struct Shortcut {
    /// The nodes before it, in an order in which they can run.
    pub members: Vec<NodeId>,
    /// What `run` finds in its inputs, in this order.
    pub inputs: Vec<Edge>,
    /// Does what the members and the node do. It may say `false`, having changed nothing and left its
    /// inputs where they are: then their own kernels run one after the other.
    pub run: Quick,
}

/// A node and those before it.
pub struct Around<'a> {
    graph: &'a Graph,
    id: NodeId,
    device: &'a Arc<Device>,
    site: &'a str,
}

impl<'a> Around<'a> {
    /// Node `id` of `graph`, which will run on `device`; `site` as for [`KernelBuilder::new`].
    pub fn new(graph: &'a Graph, id: NodeId, device: &'a Arc<Device>, site: &'a str) -> Around<'a> {
        Around {
            graph,
            id,
            device,
            site,
        }
    }

    /// The node.
    pub fn node(&self) -> &'a Arc<Node> {
        self.graph.node(self.id)
    }

    /// The node behind an edge.
    pub fn before(&self, edge: Edge) -> &'a Arc<Node> {
        self.graph.node(edge.node)
    }

    /// The node behind an edge, if it is of that op.
    pub fn op(&self, edge: Edge, op: &str) -> Option<&'a Arc<Node>> {
        Some(self.before(edge)).filter(|node| node.op_name() == op)
    }

    /// To build a kernel of the node.
    pub fn builder(&self) -> KernelBuilder<'a> {
        KernelBuilder::new(self.node(), self.device, self.site)
    }
}
