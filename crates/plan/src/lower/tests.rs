//! What lowering makes of branches, loops and calls.

use super::*;
use downpour_graph::{ArgDef, ArgKind, ElementType, FunctionDef, GraphDef, NodeDef, OpDef};

const F: DType = DType::Float;

fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, AttrValue)]) -> NodeDef {
    let mut def = NodeDef {
        name: name.into(),
        op: op.into(),
        ..Default::default()
    };
    def.inputs = inputs.iter().map(|s| s.to_string()).collect();
    for (k, v) in attrs {
        def.attrs.set(*k, v.clone());
    }
    def
}

fn function(name: &str, args: &[&str], nodes: Vec<NodeDef>, rets: &[(DType, &str)]) -> FunctionDef {
    let arg = |name: &str, t: DType| ArgDef {
        name: name.into(),
        kind: ArgKind::Single(ElementType::Fixed(t)),
        is_ref: false,
    };
    let out = |i: usize| format!("r{i}");
    FunctionDef {
        signature: OpDef {
            name: name.into(),
            inputs: args.iter().map(|a| arg(a, F)).collect(),
            outputs: rets
                .iter()
                .enumerate()
                .map(|(i, r)| arg(&out(i), r.0))
                .collect(),
            ..Default::default()
        },
        nodes,
        ret: rets
            .iter()
            .enumerate()
            .map(|(i, r)| (out(i), r.1.to_owned()))
            .collect(),
        ..Default::default()
    }
}

fn func(name: &str) -> AttrValue {
    AttrValue::Func(FunctionRef {
        name: name.into(),
        ..Default::default()
    })
}

fn lowered(nodes: Vec<NodeDef>, functions: Vec<FunctionDef>, inline: bool) -> Graph {
    let graph = Graph::new(GraphDef {
        nodes,
        functions,
        ..Default::default()
    });
    lower(graph.unwrap(), 0, inline)
}

fn show(graph: &Graph) -> Vec<String> {
    graph
        .nodes()
        .map(|(_, n)| {
            let mut line = format!("{} {}", n.name, n.op_name());
            for e in &n.inputs {
                line += &format!(" {}:{}", graph.node(e.node).name, e.output);
            }
            for c in &n.control_inputs {
                line += &format!(" ^{}", graph.node(*c).name);
            }
            line
        })
        .collect()
}

fn t() -> (&'static str, AttrValue) {
    ("T", F.into())
}

fn source(name: &str, dtype: DType) -> NodeDef {
    node(name, "Placeholder", &[], &[("dtype", dtype.into())])
}

#[test]
fn a_branch_becomes_switches_around_both_bodies() {
    let attrs = [
        ("Tcond", DType::Bool.into()),
        ("Tin", vec![F].into()),
        ("Tout", vec![F].into()),
        ("then_branch", func("neg")),
        ("else_branch", func("one")),
        ("_lower_using_switch_merge", true.into()),
    ];
    let one = Tensor::scalar(1f32);
    let functions = vec![
        function(
            "neg",
            &["x"],
            vec![node("n", "Neg", &["x"], &[t()])],
            &[(F, "n:y:0")],
        ),
        function(
            "one",
            &["x"],
            vec![node(
                "c",
                "Const",
                &[],
                &[("dtype", F.into()), ("value", one.into())],
            )],
            &[(F, "c:output:0")],
        ),
    ];
    let nodes = vec![
        source("p", DType::Bool),
        source("x", F),
        node("if", "StatelessIf", &["p", "x"], &attrs),
        node("y", "Abs", &["if"], &[t()]),
    ];
    let g = lowered(nodes, functions, false);
    assert_eq!(
        show(&g),
        [
            "p Placeholder",
            "x Placeholder",
            "if IdentityN if/_1/merge_0:0 ^if/_1/branch_executed",
            "y Abs if/_1/merge_0:0",
            "if/_1/switch_pred Switch p:0 p:0",
            "if/_1/switch_1 Switch x:0 p:0",
            "if/_1/pivot_else Identity if/_1/switch_pred:0",
            "if/else/_2/c Const ^if/_1/pivot_else",
            "if/_1/done_else Identity if/_1/pivot_else:0",
            "if/_1/pivot_then Identity if/_1/switch_pred:1",
            "if/then/_3/n Neg if/_1/switch_1:1",
            "if/_1/done_then Identity if/_1/pivot_then:0",
            "if/_1/merge_0 Merge if/then/_3/n:0 if/else/_2/c:0",
            "if/_1/branch_executed Merge if/_1/done_then:0 if/_1/done_else:0",
        ]
    );
    assert_eq!(g.node(g.find("if/then/_3/n").unwrap()).shown_name(), "n");
}

#[test]
fn a_loop_becomes_a_frame_and_what_it_passes_on_stays_outside() {
    let attrs = [
        ("T", vec![F, F].into()),
        ("cond", func("less")),
        ("body", func("sum")),
        ("parallel_iterations", 3i64.into()),
        ("_lower_using_switch_merge", true.into()),
    ];
    let functions = vec![
        function(
            "less",
            &["x", "y"],
            vec![node("l", "Less", &["x", "y"], &[t()])],
            &[(DType::Bool, "l:z:0")],
        ),
        function(
            "sum",
            &["x", "y"],
            vec![node("s", "AddV2", &["x", "y"], &[t()])],
            &[(F, "s:z:0"), (F, "y")],
        ),
    ];
    let nodes = vec![
        source("a", F),
        source("b", F),
        node("w", "While", &["a", "b"], &attrs),
        node("u", "Neg", &["w:1"], &[t()]),
    ];
    let g = lowered(nodes, functions, false);
    assert_eq!(
        show(&g)[2..],
        [
            "w IdentityN w/_1/exit_0:0 b:0 ^w/_1/exit_0",
            "u Neg b:0",
            "w/_1/enter_0 Enter a:0",
            "w/_1/merge_0 Merge w/_1/enter_0:0 w/_1/next_0:0",
            "w/_1/enter_1 Enter b:0",
            "w/cond/_2/l Less w/_1/merge_0:0 w/_1/enter_1:0",
            "w/_1/loop_cond LoopCond w/cond/_2/l:0",
            "w/_1/switch_0 Switch w/_1/merge_0:0 w/_1/loop_cond:0",
            "w/_1/body_pivot Identity w/_1/switch_0:1",
            "w/_1/fixed_1 Identity w/_1/enter_1:0 ^w/_1/body_pivot",
            "w/body/_3/s AddV2 w/_1/switch_0:1 w/_1/fixed_1:0",
            "w/_1/next_0 NextIteration w/body/_3/s:0",
            "w/_1/exit_0 Exit w/_1/switch_0:0",
        ]
    );
}

#[test]
fn a_function_inside_itself_stays_a_call() {
    let call = [
        ("Tin", vec![F].into()),
        ("Tout", vec![F].into()),
        ("f", func("f")),
    ];
    let again = node("again", "PartitionedCall", &["x"], &call);
    let functions = vec![function("f", &["x"], vec![again], &[(F, "again:output:0")])];
    let nodes = vec![source("x", F), node("c", "PartitionedCall", &["x"], &call)];
    let g = lowered(nodes.clone(), functions.clone(), true);
    assert!(
        show(&g).contains(&"c/again PartitionedCall c/_1/input_0:0".to_owned()),
        "{:?}",
        show(&g)
    );
    assert_eq!(lowered(nodes, functions, false).len(), 2);
}
