//! What the staging areas of `Stage` and of `MapStage` share: limits, waiting puts and takes, and how the nodes that use an
//! area find it. Areas differ in their [`Contents`].

use super::wait::{Done, Ended, Waiting, tell};
use downpour_graph::{Result, Status};
use downpour_runtime::{
    AsyncOp, Built, Cancellation, KernelBuilder, OpContext, Resource, ResourceManager,
};
use downpour_tensor::{DType, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

/// One element.
pub(super) type Tuple = Vec<Tensor>;

/// Bytes as TensorFlow counts them: strings with the 24 of their objects.
pub(super) fn bytes(tensor: &Tensor) -> usize {
    match tensor.dtype() {
        DType::String => tensor
            .num_elements()
            .saturating_mul(24)
            .saturating_add(tensor.byte_len()),
        _ => tensor.byte_len(),
    }
}

/// How much an area may hold; 0 is no limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) capacity: usize,
    pub(super) memory: usize,
}

impl Limits {
    fn of(b: &KernelBuilder<'_>) -> Result<Limits> {
        Ok(Limits {
            capacity: b.attrs().size("capacity")?,
            memory: b.attrs().size("memory_limit")?,
        })
    }

    /// Refuses what would have to wait for ever.
    fn check(&self, size: usize) -> Result<()> {
        let limit = self.memory;
        if limit == 0 || size <= limit {
            return Ok(());
        }
        Err(Status::resource_exhausted(format!(
            "Attempted to insert tensors with combined size of '{size}' bytes into Staging Area with a memory limit of '{limit}'."
        )))
    }

    /// Whether `more` bytes fit besides `used`.
    pub(super) fn admits_bytes(&self, used: usize, more: usize) -> bool {
        self.memory == 0 || used.saturating_add(more) <= self.memory
    }

    /// Whether one more element fits besides `count`.
    pub(super) fn admits_one(&self, count: usize) -> bool {
        self.capacity == 0 || count < self.capacity
    }
}

/// What an area holds.
pub(super) trait Contents: Send + Sized + 'static {
    /// TensorFlow's C++ type of the area.
    const TYPE_NAME: &'static str;
    /// What to put in.
    type Put: Send + 'static;
    /// What to take out, or to look at.
    type Take: Send + 'static;

    /// Empty contents of the area that a node uses.
    fn empty(b: &KernelBuilder<'_>) -> Result<Self>;

    /// The same, empty.
    fn emptied(&self) -> Self;

    /// Bytes that a put counts for.
    fn size(put: &Self::Put) -> usize;

    /// Puts something in, or says why not; `None` if there is no room yet.
    fn put(&mut self, limits: &Limits, put: &mut Self::Put) -> Option<Result<Tuple>>;

    /// Takes something out, or says why not; `None` if it is not there yet.
    fn take(&mut self, take: &mut Self::Take) -> Option<Result<Tuple>>;
}

/// A node's area: a place in a device's resources, named by the node's attributes or the node itself.
pub(super) struct Shared<C> {
    container: String,
    name: String,
    limits: Limits,
    empty: C,
}

impl<C: Contents + Sync> Shared<C> {
    pub(super) fn new(b: &KernelBuilder<'_>) -> Result<Shared<C>> {
        let (container, name) = b.resource_name()?;
        Ok(Shared {
            container,
            name,
            limits: Limits::of(b)?,
            empty: C::empty(b)?,
        })
    }

    fn of(&self, resources: &ResourceManager) -> Result<Arc<Area<C>>> {
        resources.find_or_create(&self.container, &self.name, || {
            Ok(Area::new(self.limits, self.empty.emptied()))
        })
    }

    fn of_ctx(&self, ctx: &OpContext<'_>) -> Result<Arc<Area<C>>> {
        self.of(&ctx.device().resources)
    }

    /// The area, for a waiting op.
    pub(super) fn of_op(&self, op: &AsyncOp) -> Result<Arc<Area<C>>> {
        self.of(&op.env().device.resources)
    }
}

/// A staging area.
pub(super) struct Area<C: Contents> {
    limits: Limits,
    state: Mutex<State<C>>,
}

struct State<C: Contents> {
    contents: C,
    puts: Waiting<C::Put, Tuple>,
    takes: Waiting<C::Take, Tuple>,
}

impl<C: Contents> Resource for Area<C> {
    fn type_name(&self) -> &'static str {
        C::TYPE_NAME
    }
}

impl<C: Contents> Area<C> {
    pub(super) fn new(limits: Limits, contents: C) -> Area<C> {
        let state = State {
            contents,
            puts: Waiting::default(),
            takes: Waiting::default(),
        };
        Area {
            limits,
            state: Mutex::new(state),
        }
    }

    /// Looks at the contents.
    pub(super) fn look<T>(&self, look: impl FnOnce(&C) -> T) -> T {
        look(&self.state.lock().contents)
    }

    /// Puts something in once there is room.
    pub(super) fn put(
        self: &Arc<Self>,
        put: C::Put,
        cancellation: &Arc<Cancellation>,
        done: Done<Tuple>,
    ) {
        if let Err(e) = self.limits.check(C::size(&put)) {
            return done(Err(e));
        }
        let (refused, ended) = {
            let mut state = self.state.lock();
            let this = self.clone();
            let cancel = move |id| this.cancel(|state| &mut state.puts, id);
            let refused = state.puts.push(put, cancellation, cancel, done).err();
            (refused, self.flush(&mut state))
        };
        tell(ended);
        if let Some(done) = refused {
            done(Err(cancelled()));
        }
    }

    /// Takes something out once it is there.
    pub(super) fn take(
        self: &Arc<Self>,
        take: C::Take,
        cancellation: &Arc<Cancellation>,
        done: Done<Tuple>,
    ) {
        let (refused, ended) = {
            let mut state = self.state.lock();
            let this = self.clone();
            let cancel = move |id| this.cancel(|state| &mut state.takes, id);
            let refused = state.takes.push(take, cancellation, cancel, done).err();
            (refused, self.flush(&mut state))
        };
        tell(ended);
        if let Some(done) = refused {
            done(Err(cancelled()));
        }
    }

    fn cancel<W>(&self, list: impl FnOnce(&mut State<C>) -> &mut Waiting<W, Tuple>, id: u64) {
        let gone = list(&mut self.state.lock()).remove(id);
        if let Some(attempt) = gone {
            attempt.end(Err(cancelled())).tell();
        }
    }

    /// Drops the contents.
    pub(super) fn clear(&self) {
        let (gone, ended) = {
            let mut state = self.state.lock();
            let empty = state.contents.emptied();
            let gone = std::mem::replace(&mut state.contents, empty);
            (gone, self.flush(&mut state))
        };
        drop(gone);
        tell(ended);
    }

    /// Serves all that can be served, in order of arrival, until nothing can.
    fn flush(&self, state: &mut State<C>) -> Vec<Ended<Tuple>> {
        let State {
            contents,
            puts,
            takes,
        } = state;
        let mut ended = Vec::new();
        loop {
            let before = ended.len();
            puts.serve(&mut ended, |put| contents.put(&self.limits, put));
            takes.serve(&mut ended, |take| contents.take(take));
            if ended.len() == before {
                return ended;
            }
        }
    }
}

fn cancelled() -> Status {
    Status::cancelled("Staging operation was cancelled")
}

/// The kernel of an op that says how much there is, by `count`.
pub(super) fn count<C: Contents + Sync>(
    b: &KernelBuilder<'_>,
    count: fn(&C) -> usize,
) -> Result<Built> {
    let area = Shared::<C>::new(b)?;
    Built::cheap(move |ctx| {
        let size = area.of_ctx(ctx)?.look(count);
        ctx.set_output(0, Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX)));
        Ok(())
    })
}

/// The kernel of an op that drops all there is.
pub(super) fn clear<C: Contents + Sync>(b: &KernelBuilder<'_>) -> Result<Built> {
    let area = Shared::<C>::new(b)?;
    Built::cheap(move |ctx| {
        area.of_ctx(ctx)?.clear();
        Ok(())
    })
}
