//! How many of TensorFlow's op types have a kernel.

use downpour_graph::find_op;
use downpour_runtime::Registry;
use std::collections::BTreeSet;

/// Kernels are only ever added: raise this with every addition.
const REACHED: usize = 1_289;

/// What the executor runs itself, without a kernel.
const WITHOUT_KERNEL: &[&str] = &[
    "Switch",
    "RefSwitch",
    "Merge",
    "RefMerge",
    "Enter",
    "RefEnter",
    "Exit",
    "RefExit",
    "NextIteration",
    "RefNextIteration",
    "_Arg",
    "_Retval",
];

#[test]
fn op_types_with_kernels_do_not_become_fewer() {
    let mut registry = Registry::new();
    downpour_kernels::register(&mut registry);
    let registered: BTreeSet<&str> = registry.ops().collect();
    let unknown: Vec<&&str> = registered
        .iter()
        .filter(|op| find_op(op).is_none())
        .collect();
    assert!(unknown.is_empty(), "kernels of no op: {unknown:?}");
    for op in WITHOUT_KERNEL {
        assert!(find_op(op).is_some() && !registered.contains(op), "{op}");
    }
    let count = registered.len();
    println!(
        "{count} op types with kernels, {} run by the executor",
        WITHOUT_KERNEL.len()
    );
    assert!(
        count >= REACHED,
        "{count} op types have kernels, there were {REACHED}"
    );
}
