//! The threads that carry a client's calls: one small runtime, made when first needed.

use downpour_net::MasterCalls;
use std::future::Future;
use std::sync::LazyLock;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};

static RUNTIME: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("downpour-client")
        .enable_all()
        .build()
        .ok()
});

/// The runtime's handle; nothing if the system gives no threads.
fn handle() -> Option<&'static Handle> {
    RUNTIME.as_ref().map(Runtime::handle)
}

/// Makes the client's runtime the current one, for code that must be called inside a runtime.
///
/// # Errors
/// If the system gives no threads.
pub(crate) fn enter() -> downpour_build::Result<EnterGuard<'static>> {
    let none = || downpour_build::Status::unavailable("cannot start the client's network thread");
    handle().map(Handle::enter).ok_or_else(none)
}

/// Waits for `future` on this thread, which may itself be one of a runtime with several.
pub(crate) fn wait<T>(
    future: impl Future<Output = downpour_build::Result<T>>,
) -> downpour_build::Result<T> {
    let inside = Handle::try_current().is_ok();
    let _client = enter()?;
    let handle = Handle::current();
    match inside {
        true => tokio::task::block_in_place(|| handle.block_on(future)),
        false => handle.block_on(future),
    }
}

/// As [`wait`], for a step of this master: if it lives in this process, the thread does what comes over
/// its lanes meanwhile.
pub(crate) fn wait_for_step<T>(
    master: &dyn MasterCalls,
    future: impl Future<Output = downpour_build::Result<T>>,
) -> downpour_build::Result<T> {
    match master.lanes() {
        Some(lanes) if lanes.is_in_use() && Handle::try_current().is_err() => {
            let _client = enter()?;
            lanes.block_on(future)
        }
        _ => wait(future),
    }
}

/// Runs `future` beside whatever else is going on.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    if let Some(handle) = handle() {
        handle.spawn(future);
    }
}
