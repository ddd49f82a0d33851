//! Resources without a shared name: each run of their op makes a new one, which goes when its
//! deleter does or when it is deleted.

use downpour_graph::Result;
use downpour_runtime::{KernelBuilder, OpContext, Resource, ResourceManager};
use downpour_tensor::{ResourceHandle, Tensor, Variant, VariantValue};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Makes handles to new resources.
pub(super) struct Anonymous {
    name: &'static str,
    handle: ResourceHandle,
}

impl Anonymous {
    /// `name` is what the resources are called, `type_name` TensorFlow's C++ type.
    pub(super) fn new(b: &KernelBuilder<'_>, name: &'static str, type_name: &str) -> Anonymous {
        let container = b.device.default_container.clone();
        Anonymous {
            name,
            handle: b.handle(&container, "", type_name, vec![]),
        }
    }

    /// Sets output 0 to the handle of `resource`, and output 1, if there is one, to its deleter.
    pub(super) fn emit<R: Resource>(&self, ctx: &mut OpContext<'_>, resource: R) {
        let mut handle = self.handle.clone();
        handle.name = format!("{}{}", self.name, NUMBER.fetch_add(1, Ordering::Relaxed));
        let resources = &ctx.device().resources;
        resources.insert(&handle.container, &handle.name, Arc::new(resource));
        if ctx.num_outputs() > 1 {
            let deleter = Deleter {
                resources: Arc::downgrade(resources),
                handle: handle.clone(),
            };
            ctx.set_output(1, Tensor::variant(Variant::new(deleter)));
        }
        ctx.set_output(0, Tensor::resource(handle));
    }
}

/// Deletes what the handle at input 0 names.
pub(super) fn delete<R: Resource>(ctx: &OpContext<'_>) -> Result<()> {
    let handle = ctx.handle(0)?;
    ctx.device()
        .resources
        .remove::<R>(&handle.container, &handle.name);
    Ok(())
}

/// Deletes a resource when the last copy of it goes.
struct Deleter {
    resources: std::sync::Weak<ResourceManager>,
    handle: ResourceHandle,
}

impl Drop for Deleter {
    fn drop(&mut self) {
        if let Some(resources) = self.resources.upgrade() {
            resources.remove_any(&self.handle.container, &self.handle.name);
        }
    }
}

impl fmt::Debug for Deleter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResourceDeleter")
    }
}

impl VariantValue for Deleter {
    fn type_name(&self) -> &str {
        "tensorflow::ResourceDeleter"
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
