//! TensorFlow's graph: nodes, attributes, op signatures, device names, functions, validation.
//!
//! [`GraphDef`] is the unchecked form (what a client sends, decoded); [`Graph`] the checked one
//! that everything downstream works on: [`Graph::extend`] is the only way from one to the other.
//! [`Status`], TensorFlow's code and message, is the error currency of every crate above.
//! No I/O, no async, no clock.

mod attr;
mod def;
mod function;
mod gradient;
mod graph;
mod ids;
mod names;
mod op_def;
mod op_table;
mod print;
mod removed;
mod rules;
mod status;

pub use attr::{AttrList, AttrValue, Attrs, FunctionRef};
pub use def::{FunctionDef, GraphDef, NodeDef, Versions};
pub use function::{FunctionBody, Functions};
pub use graph::{Edge, Endpoint, Graph, Node, NodeId, OutputType};
pub use ids::EdgeId;
pub use names::{DeviceName, DeviceNameError, is_valid_node_name, parse_endpoint};
pub use op_def::{ArgDef, ArgKind, AttrDef, ElementType, OpDef};
pub use op_table::{find_op, op_names};
pub use print::attr_text;
pub use status::{Code, Result, Status};
