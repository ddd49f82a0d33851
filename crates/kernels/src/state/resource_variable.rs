//! Variables by handle: `VarHandleOp`, reading, assigning, destroying.

use crate::queue::shared_handle::ANONYMOUS;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, LastFound, OpContext, Registry, Variable};
use downpour_tensor::{DType, ResourceHandle, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// TensorFlow's name of the variable type in handles and errors.
const VAR_TYPE: &str = "N10tensorflow3VarE";
/// The `shared_name` that asks for a fresh variable on every run.
const ANONYMOUS_NAME: &str = "cd2c89b7-88b7-44c8-ad83-06c2a9158347";

pub(super) fn register(r: &mut Registry) {
    r.add("VarHandleOp", var_handle);
    r.add("_VarHandlesOp", var_handles);
    r.add("ReadVariableOp", read_variable);
    r.add("_ReadVariablesOp", read_variables);
    r.add("AssignVariableOp", assign_variable);
    r.add("VarIsInitializedOp", |_| {
        Built::cheap(|ctx| {
            let found = find(ctx, ctx.handle(0)?).is_some_and(|v| v.is_initialized());
            ctx.set_output(0, Tensor::scalar(found));
            Ok(())
        })
    });
    r.add_typed(
        "VariableShape",
        &[("out_type", crate::types::INDEX)],
        variable_shape,
    );
    r.add("DestroyResourceOp", destroy);
    r.add("DisableCopyOnRead", |_| {
        Built::cheap(|ctx| readable(ctx, 0).map(|_| ()))
    });
}

/// The variable a handle names.
pub(super) fn find(ctx: &OpContext<'_>, handle: &ResourceHandle) -> Option<Arc<Variable>> {
    if handle.container == ANONYMOUS {
        return ctx.env().step_resources.find(ANONYMOUS, &handle.name);
    }
    ctx.device().resources.find(&handle.container, &handle.name)
}

fn not_found(ctx: &OpContext<'_>, handle: &ResourceHandle) -> Status {
    ctx.device()
        .resources
        .not_found(&handle.container, &handle.name, VAR_TYPE)
}

/// The variable that input `i` names, initialised or not; NOT_FOUND if there is none.
pub(super) fn lookup(ctx: &OpContext<'_>, i: usize) -> Result<Arc<Variable>> {
    let handle = ctx.handle(i)?;
    find(ctx, handle).ok_or_else(|| not_found(ctx, handle))
}

/// A snapshot of the variable that input `i` names; NOT_FOUND if it has no value.
pub(super) fn snapshot(ctx: &OpContext<'_>, i: usize) -> Result<Tensor> {
    let handle = ctx.handle(i)?;
    find(ctx, handle)
        .and_then(|v| v.read_by(ctx.env().step_id))
        .ok_or_else(|| not_found(ctx, handle))
}

/// As [`snapshot`], but FAILED_PRECONDITION in the words of a read, which clients look for.
fn readable(ctx: &OpContext<'_>, i: usize) -> Result<Tensor> {
    snapshot(ctx, i).map_err(|status| match ctx.handle(i) {
        Ok(handle) => Status::failed_precondition(format!(
            "Could not find variable {}. This could mean that the variable has been deleted. In TF1, it can also mean the variable is uninitialized. Debug info: container={}, status error message={}",
            handle.name, handle.container, status.message
        )),
        Err(e) => e,
    })
}

/// The variable that input 0 names, unless it is one that ends with the step.
fn found_again(ctx: &OpContext<'_>, last: &LastFound<Variable>) -> Result<Option<Arc<Variable>>> {
    if ctx.handle(0)?.container == ANONYMOUS {
        return Ok(None);
    }
    Ok(last.find(&ctx.device().resources, ctx.input(0)?))
}

fn container<'a>(b: &'a KernelBuilder<'_>, given: &'a str) -> &'a str {
    if given.is_empty() {
        &b.device.default_container
    } else {
        given
    }
}

/// Unlike other resources, a variable without `shared_name` is called by the empty name, not by
/// its node's.
fn var_handle(b: &KernelBuilder<'_>) -> Result<Built> {
    let name = b.attrs().name("shared_name")?.into_owned();
    let given = b.attrs().name("container")?;
    let container = container(b, &given);
    let contents = vec![(b.attrs().dtype("dtype")?, b.attrs().shape("shape")?.clone())];
    if name == ANONYMOUS_NAME {
        let handle = b.handle(ANONYMOUS, "", VAR_TYPE, contents);
        let next = AtomicU64::new(0);
        return Built::cheap(move |ctx| {
            // A node has one kernel per session; its name keeps nodes of one step apart.
            let count = next.fetch_add(1, Ordering::Relaxed);
            let handle = ResourceHandle {
                name: format!("{}/{count}", ctx.name()),
                ..handle.clone()
            };
            let variable = Arc::new(Variable::new());
            let resources = &ctx.env().step_resources;
            resources.insert(ANONYMOUS, &handle.name, variable);
            ctx.set_output(0, Tensor::resource(handle));
            Ok(())
        });
    }
    let handle = Tensor::resource(b.handle(container, &name, VAR_TYPE, contents));
    Built::cheap(move |ctx| {
        ctx.set_output(0, handle.clone());
        Ok(())
    })
}

fn var_handles(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let text = |bytes: &bytes::Bytes| String::from_utf8_lossy(bytes).into_owned();
    let containers: Vec<String> = attrs.byte_strings("containers")?.iter().map(text).collect();
    let names: Vec<String> = attrs
        .byte_strings("shared_names")?
        .iter()
        .map(text)
        .collect();
    let handles: Vec<Tensor> = containers
        .iter()
        .zip(&names)
        .zip(attrs.dtypes("dtypes")?.iter().zip(attrs.shapes("shapes")?))
        .map(|((c, name), (dtype, shape))| {
            let contents = vec![(*dtype, shape.clone())];
            Tensor::resource(b.handle(container(b, c), name, VAR_TYPE, contents))
        })
        .collect();
    Built::cheap(move |ctx| {
        for (i, handle) in handles.iter().enumerate() {
            ctx.set_output(i, handle.clone());
        }
        Ok(())
    })
}

fn read_variable(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    let last = LastFound::<Variable>::default();
    Built::cheap(move |ctx| {
        let known = found_again(ctx, &last)?;
        let value = match known.and_then(|v| v.read_by(ctx.env().step_id)) {
            Some(value) => value,
            None => readable(ctx, 0)?,
        };
        check_dtype(dtype, &value)?;
        ctx.set_output(0, value);
        Ok(())
    })
}

fn read_variables(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtypes = b.attrs().dtypes("dtypes")?.to_vec();
    Built::cheap(move |ctx| {
        let mut missing = Vec::new();
        for (i, &dtype) in dtypes.iter().enumerate() {
            let handle = ctx.handle(i)?;
            match find(ctx, handle).and_then(|v| v.read_by(ctx.env().step_id)) {
                Some(value) => {
                    check_dtype(dtype, &value)?;
                    ctx.set_output(i, value);
                }
                None => missing.push(handle.name.clone()),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "In ReadVariablesOp the following variables were found uninitialized: {}",
            missing.join(", ")
        )))
    })
}

fn check_dtype(wanted: DType, value: &Tensor) -> Result<()> {
    if value.dtype() == wanted {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "Trying to read variable with wrong dtype. Expected {wanted} got {}",
        value.dtype()
    )))
}

fn assign_variable(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    let validate = b.attrs().bool("validate_shape")?;
    let last = LastFound::<Variable>::default();
    Built::cheap(move |ctx| {
        let value = ctx.take(1)?.kept();
        let variable = match found_again(ctx, &last)? {
            Some(variable) => variable,
            None => find_or_make(ctx)?,
        };
        variable.update(|old| {
            if let Some(old) = old {
                if old.dtype() != dtype {
                    return Err(Status::invalid_argument(format!(
                        "Trying to assign variable with wrong dtype. Expected {} got {dtype}",
                        old.dtype()
                    )));
                }
                if validate && old.shape() != value.shape() {
                    return Err(Status::invalid_argument(format!(
                        "Trying to assign to variable with tensor with wrong shape. Expected {} got {}",
                        old.shape(),
                        value.shape()
                    )));
                }
            }
            variable.note_update(ctx.env());
            *old = Some(value);
            Ok(())
        })
    })
}

/// The variable that input 0 names, made if there is none.
fn find_or_make(ctx: &OpContext<'_>) -> Result<Arc<Variable>> {
    let handle = ctx.handle(0)?;
    let resources = if handle.container == ANONYMOUS {
        &ctx.env().step_resources
    } else {
        &*ctx.device().resources
    };
    resources.find_or_create(&handle.container, &handle.name, || Ok(Variable::new()))
}

fn variable_shape(b: &KernelBuilder<'_>) -> Result<Built> {
    let out_type = b.attrs().dtype("out_type")?;
    Built::cheap(move |ctx| {
        let value = snapshot(ctx, 0)?;
        let dims: Vec<i64> = value.dims().iter().map(|&d| d as i64).collect();
        let rank = dims.len();
        ctx.set_output(0, crate::args::int_tensor(out_type, dims, [rank])?);
        Ok(())
    })
}

fn destroy(b: &KernelBuilder<'_>) -> Result<Built> {
    let lenient = b.attrs().bool("ignore_lookup_error")?;
    Built::cheap(move |ctx| {
        let handle = ctx.handle(0)?;
        let (container, name) = (&handle.container, &handle.name);
        let resources = &ctx.device().resources;
        let removed = if container == ANONYMOUS {
            ctx.env().step_resources.remove_any(container, name)
        } else if handle.type_name == VAR_TYPE {
            // Not the reference variable that may have the same name.
            resources.remove::<Variable>(container, name)
        } else {
            resources.remove_any(container, name)
        };
        if removed || lenient {
            return Ok(());
        }
        let mut status = resources.not_found(container, name, "<unknown>");
        if let Some(end) = status.message.find(" (Could not find") {
            status.message.truncate(end);
        }
        Err(status)
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{device, floats, node, run_on};
    use downpour_graph::{Code, NodeDef};
    use downpour_tensor::{DType, PartialShape, Tensor};

    fn handle(dtype: DType, name: &str) -> NodeDef {
        node(
            "h",
            "VarHandleOp",
            &[],
            &[
                ("dtype", dtype.into()),
                ("shape", PartialShape::unknown().into()),
                ("shared_name", name.into()),
            ],
        )
    }

    fn arg(dtype: DType) -> NodeDef {
        let attrs = [("T", dtype.into()), ("index", 0i64.into())];
        node("x", "_Arg", &[], &attrs)
    }

    fn assign(dtype: DType, name: &str, validate: bool) -> Vec<NodeDef> {
        let attrs = [("dtype", dtype.into()), ("validate_shape", validate.into())];
        vec![
            handle(dtype, name),
            arg(dtype),
            node("a", "AssignVariableOp", &["h", "x"], &attrs),
        ]
    }

    fn read(dtype: DType, name: &str) -> Vec<NodeDef> {
        vec![
            handle(dtype, name),
            node("read", "ReadVariableOp", &["h"], &[("dtype", dtype.into())]),
            node(
                "r",
                "_Retval",
                &["read"],
                &[("T", dtype.into()), ("index", 0i64.into())],
            ),
        ]
    }

    #[test]
    fn reading_says_why_there_is_nothing_to_read() {
        let d = device();
        let e = run_on(&d, read(DType::Float, "v"), vec![]).unwrap_err();
        assert_eq!(e.code, Code::FailedPrecondition);
        assert!(e.message.starts_with("Could not find variable v. This could mean that the variable has been deleted. In TF1, it can also mean the variable is uninitialized. Debug info: container=localhost, status error message=Container localhost does not exist. (Could not find resource: localhost/v)\n"), "{}", e.message);
        run_on(&d, assign(DType::Float, "w", false), vec![floats(&[1.0])]).unwrap();
        let e = run_on(&d, read(DType::Float, "v"), vec![]).unwrap_err();
        assert!(
            e.message.contains(
                "status error message=Resource localhost/v/N10tensorflow3VarE does not exist.\n"
            ),
            "{}",
            e.message
        );
        let e = run_on(&d, read(DType::Int32, "w"), vec![]).unwrap_err();
        assert!(
            e.message
                .starts_with("Trying to read variable with wrong dtype. Expected int32 got float"),
            "{}",
            e.message
        );
    }

    #[test]
    fn assignment_checks_the_type_always_and_the_shape_on_demand() {
        let d = device();
        run_on(&d, assign(DType::Float, "v", true), vec![floats(&[1.0])]).unwrap();
        let two = vec![floats(&[1.0, 2.0])];
        let e = run_on(&d, assign(DType::Float, "v", true), two.clone()).unwrap_err();
        assert!(
            e.message.starts_with(
                "Trying to assign to variable with tensor with wrong shape. Expected [1] got [2]"
            ),
            "{}",
            e.message
        );
        run_on(&d, assign(DType::Float, "v", false), two).unwrap();
        let ints = vec![Tensor::vector(vec![1i32])];
        let e = run_on(&d, assign(DType::Int32, "v", false), ints).unwrap_err();
        assert!(
            e.message.starts_with(
                "Trying to assign variable with wrong dtype. Expected float got int32"
            ),
            "{}",
            e.message
        );
    }

    #[test]
    fn a_destroyed_variable_is_gone() {
        let d = device();
        let destroy = || {
            let attrs = [("ignore_lookup_error", false.into())];
            vec![
                handle(DType::Float, "v"),
                node("d", "DestroyResourceOp", &["h"], &attrs),
            ]
        };
        let e = run_on(&d, destroy(), vec![]).unwrap_err();
        assert!(
            e.message
                .starts_with("Container localhost does not exist.\n"),
            "{}",
            e.message
        );
        run_on(&d, assign(DType::Float, "v", false), vec![floats(&[1.0])]).unwrap();
        run_on(&d, destroy(), vec![]).unwrap();
        let e = run_on(&d, destroy(), vec![]).unwrap_err();
        assert_eq!(e.code, Code::NotFound);
        assert!(
            e.message
                .starts_with("Resource localhost/v/<unknown> does not exist.\n"),
            "{}",
            e.message
        );
    }

    #[test]
    fn an_anonymous_variable_lives_in_its_step() {
        let d = device();
        let name = super::ANONYMOUS_NAME;
        let mut nodes = assign(DType::Float, name, false);
        nodes.extend(read(DType::Float, name).into_iter().skip(1));
        nodes[3].inputs.push("^a".into());
        let out = run_on(&d, nodes, vec![floats(&[3.0])]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [3.0]);
        assert!(d.resources.list().is_empty());
    }
}
