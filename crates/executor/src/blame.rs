//! The texts of a step's errors: which node, which fetch, as TensorFlow's clients expect them.

use crate::plan::{Plan, PlanNode};
use downpour_graph::Status;
use downpour_runtime::StepEnv;

/// The error of a result that is dead: the untaken side of a branch. Of a step, it is the one of
/// TensorFlow's master, whose fetches are received; of a function, that of its caller.
pub(crate) fn no_value(i: usize, plan: &Plan, env: &StepEnv) -> Status {
    let name = plan.retval_name(i);
    let fetch = name.strip_prefix("_send_").and_then(|n| n.rsplit_once('_'));
    match fetch {
        Some((node, output)) if env.depth == 0 => {
            let (device, incarnation) = (&env.device.name, env.device.incarnation);
            Status::internal(format!(
                "Failed to fetch outputs for step {}. (Original error message: The tensor returned for {device};{incarnation:016x};{device};{node}:{output};0:0 was not valid.)",
                env.step_id
            ))
        }
        _ => Status::invalid_argument(format!(
            "Retval[{i}] does not have value\n\t [[{{{{node {name}}}}}]]"
        )),
    }
}

/// Names the node that failed, as TensorFlow does: where the message names a node already (that of
/// a called function's body), the caller's name follows without braces, because python looks for
/// those. Calls that TensorFlow's master would have replaced by their bodies are not named.
pub(crate) fn blame(message: String, node: &PlanNode, env: &StepEnv) -> String {
    let name = &node.info.name;
    if !message.contains("{{node ") {
        let shown = node.info.node.shown_name();
        return format!("{message}\n\t [[{{{{node {shown}}}}}]]");
    }
    let (attrs, op) = (&node.info.node.attrs, node.info.node.op_name());
    let lowered = matches!(attrs.bool("_lower_using_switch_merge"), Ok(true))
        || env.depth > 0 && matches!(op, "PartitionedCall" | "StatefulPartitionedCall");
    if !node.calls || lowered || message.ends_with(&format!("{{{{node {name}}}}}")) {
        return message;
    }
    format!("{message}\n\t [[{name}]]")
}
