//! Gradients of reading variables.

use super::Rule;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "ReadVariableOp" => |b| Ok(vec![b.gradient(0).cloned()]),
        _ => return None,
    })
}
