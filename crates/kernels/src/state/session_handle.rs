//! Tensors that stay in a session between its steps: a handle names one until it is deleted or the
//! session ends, which is when the kernel that made it goes.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, Resource};
use downpour_tensor::{ResourceHandle, Tensor};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// What TensorFlow calls the type of such handles, and where they say they live.
const HANDLE_TYPE: &str = "TensorHandle";

pub(super) fn register(r: &mut Registry) {
    r.add("GetSessionHandle", |b| keep(b, false));
    r.add("GetSessionHandleV2", |b| keep(b, true));
    r.add("GetSessionTensor", |_| {
        Built::cheap(|ctx| {
            let absent = |handle: &str| {
                format!("The tensor with handle '{handle}' is not in the session store.")
            };
            let value = with_store(ctx, absent, |kept, handle| {
                Some(kept.get(handle)?.1.clone())
            });
            let (value, wanted) = (value?, ctx.info().node.output_types.first());
            if wanted.is_some_and(|(dtype, _)| *dtype != value.dtype()) {
                return Err(Status::internal(format!(
                    "Output 0 of type {} does not match declared output type {} for node {{{{node {}}}}}",
                    value.dtype(),
                    wanted.map_or("", |t| t.0.name()),
                    ctx.name()
                )));
            }
            ctx.set_output(0, value);
            Ok(())
        })
    });
    r.add("DeleteSessionTensor", |_| {
        Built::cheap(|ctx| {
            let absent = |handle: &str| {
                format!("Failed to delete a tensor with handle '{handle}' in the session store.")
            };
            with_store(ctx, absent, |kept, handle| kept.remove(handle)).map(drop)
        })
    });
}

/// All kept tensors of a device, with the kernel that keeps each.
#[derive(Default)]
struct Store(Mutex<Kept>);

type Kept = HashMap<String, (u64, Tensor)>;

impl Resource for Store {
    fn type_name(&self) -> &'static str {
        "N10tensorflow12SessionStateE"
    }
}

fn store(ctx: &OpContext<'_>) -> Result<Arc<Store>> {
    let resources = &ctx.device().resources;
    resources.find_or_create("_session_state", HANDLE_TYPE, || Ok(Store::default()))
}

/// What `f` gives for the handle in input 0; nothing is the error `failure` words.
fn with_store<T>(
    ctx: &OpContext<'_>,
    failure: impl FnOnce(&str) -> String,
    f: impl FnOnce(&mut Kept, &str) -> Option<T>,
) -> Result<T> {
    let handle = match ctx.input(0)?.as_strings()? {
        [handle] => String::from_utf8_lossy(handle).into_owned(),
        _ => return Err(Status::invalid_argument("a session handle is a scalar")),
    };
    let found = f(&mut store(ctx)?.0.lock(), &handle);
    found.ok_or_else(|| Status::invalid_argument(failure(&handle)))
}

/// A kernel that keeps tensors, and where.
struct Keeper {
    id: u64,
    store: Mutex<Weak<Store>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(store) = self.store.lock().upgrade() {
            store.0.lock().retain(|_, (keeper, _)| *keeper != self.id);
        }
    }
}

fn keep(b: &KernelBuilder<'_>, by_resource: bool) -> Result<Built> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let keeper = Keeper {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        store: Mutex::default(),
    };
    let made = AtomicU64::new(0);
    let template = b.handle(HANDLE_TYPE, "", HANDLE_TYPE, Vec::new());
    Built::cheap(move |ctx| {
        let store = store(ctx)?;
        *keeper.store.lock() = Arc::downgrade(&store);
        // Nobody else makes this number: kernels differ in the upper half.
        let count = made.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{};{};{}",
            ctx.name(),
            (keeper.id << 32).wrapping_add(count),
            ctx.device().name
        );
        let value = ctx.take(0)?;
        store.0.lock().insert(name.clone(), (keeper.id, value));
        let handle = match by_resource {
            true => Tensor::resource(ResourceHandle {
                name,
                ..template.clone()
            }),
            false => Tensor::string(name.into_bytes()),
        };
        ctx.set_output(0, handle);
        Ok(())
    })
}
