//! `TemporaryVariable`: a variable that lives within one step (and one loop iteration).

use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, Resource, Variable};
use std::sync::Arc;

const TYPE: &str = "N10tensorflow19TemporaryVariableOp6TmpVarE";

pub(super) fn register(r: &mut Registry) {
    r.add("TemporaryVariable", create);
    r.add("DestroyTemporaryVariable", destroy);
}

struct Temporary(Arc<Variable>);

impl Resource for Temporary {
    fn type_name(&self) -> &'static str {
        TYPE
    }
}

/// The variable's name, unique to the frame and iteration, and as error texts show it.
fn names(ctx: &OpContext<'_>, name: &str) -> (String, String) {
    let (frame, iter) = ctx.frame_iter();
    let name = format!("{name}/frame:{frame}/iter:{iter}");
    let shown = format!("Resource __per_step_{}/{name}/{TYPE}", ctx.env().step_id);
    (name, shown)
}

fn create(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    let shape = super::ref_variable::declared_shape(b)?;
    let name = match b.attrs().str("var_name")? {
        "" => b.node.name.to_string(),
        name => name.to_owned(),
    };
    Built::cheap(move |ctx| {
        let (name, shown) = names(ctx, &name);
        let zeros = ctx.zeros(dtype, &shape)?;
        let mut made = false;
        let resources = &ctx.env().step_resources;
        let found = resources.find_or_create("", &name, || {
            made = true;
            Ok(Temporary(Arc::new(Variable::with_value(zeros))))
        })?;
        if !made {
            return Err(Status::new(Code::AlreadyExists, shown));
        }
        ctx.set_output_ref(0, found.0.clone());
        Ok(())
    })
}

fn destroy(b: &KernelBuilder<'_>) -> Result<Built> {
    let name = b.attrs().str("var_name")?.to_owned();
    Built::cheap(move |ctx| {
        let value = ctx.input_ref(0)?.read();
        let (name, shown) = names(ctx, &name);
        if !ctx.env().step_resources.remove::<Temporary>("", &name) {
            return Err(Status::not_found(format!("{shown} does not exist.")));
        }
        let value = value.ok_or_else(|| super::variable_access::uninitialized(ctx, 0))?;
        ctx.set_output(0, value);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{device, node, run_on};
    use downpour_graph::{Code, NodeDef};
    use downpour_tensor::{DType, PartialShape};

    fn graph(destroyed: &str, second: bool) -> Vec<NodeDef> {
        let shape = PartialShape::checked([2]).unwrap();
        let t = ("T", DType::Float.into());
        let create = |name: &str| {
            node(
                name,
                "TemporaryVariable",
                &[],
                &[
                    ("dtype", DType::Float.into()),
                    ("shape", shape.clone().into()),
                    ("var_name", "tt".into()),
                ],
            )
        };
        let mut nodes = vec![
            create("tmp"),
            node(
                "inc",
                "AssignAdd",
                &["tmp", "tmp"],
                std::slice::from_ref(&t),
            ),
            node(
                "end",
                "DestroyTemporaryVariable",
                &["inc"],
                &[t.clone(), ("var_name", destroyed.into())],
            ),
            node("r", "_Retval", &["end"], &[t, ("index", 0i64.into())]),
        ];
        if second {
            let mut other = create("tmp2");
            other.inputs.push("^tmp".into());
            nodes[2].inputs.push("^tmp2".into());
            nodes.push(other);
        }
        nodes
    }

    #[test]
    fn a_temporary_variable_lives_in_its_step_under_a_unique_name() {
        let d = device();
        for _ in 0..2 {
            let out = run_on(&d, graph("tt", false), vec![]).unwrap();
            assert_eq!(out[0].as_slice::<f32>().unwrap(), [0.0, 0.0]);
        }
        let e = run_on(&d, graph("other", false), vec![]).unwrap_err();
        assert_eq!(e.code, Code::NotFound);
        assert!(
            e.message.starts_with("Resource __per_step_1/other/frame:0/iter:0/N10tensorflow19TemporaryVariableOp6TmpVarE does not exist."),
            "{}",
            e.message
        );
        let e = run_on(&d, graph("tt", true), vec![]).unwrap_err();
        assert_eq!(e.code, Code::AlreadyExists, "{}", e.message);
    }
}
