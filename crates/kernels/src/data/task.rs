//! Futures on the device's executor threads: tasks, a turnstile for whoever shares an iterator,
//! and ops that end when a future does.
//!
//! A task is polled only on executor threads and by one of them at a time. Dropping its handle
//! stops it: its future is dropped, at once or when the poll under way returns, and with it
//! everything it was waiting for.

use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, CancelToken, Cancellation, Device};
use downpour_tensor::Tensor;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// ```text
/// IDLE ──wake──► QUEUED ──► RUNNING ──pending──► IDLE
///                  ▲           │ wake
///                  └─pending── WOKEN           RUNNING ──ready or stopped──► OVER
/// ```
const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const WOKEN: u8 = 3;
const OVER: u8 = 4;

/// A future under way.
struct Task {
    device: Arc<Device>,
    state: AtomicU8,
    stopped: AtomicBool,
    work: Mutex<Option<Work>>,
}

/// Keeps a task going; dropped, it stops it.
pub(super) struct TaskHandle(Arc<Task>);

impl Drop for TaskHandle {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Starts a future on an executor thread.
pub(super) fn spawn(
    device: &Arc<Device>,
    work: impl Future<Output = ()> + Send + 'static,
) -> TaskHandle {
    let task = Arc::new(Task {
        device: device.clone(),
        state: AtomicU8::new(IDLE),
        stopped: AtomicBool::new(false),
        work: Mutex::new(Some(Box::pin(work))),
    });
    task.wake_by_ref();
    TaskHandle(task)
}

/// As [`spawn`], for work that nobody waits for and nobody stops.
pub(super) fn spawn_detached(
    device: &Arc<Device>,
    work: impl Future<Output = ()> + Send + 'static,
) {
    std::mem::forget(spawn(device, work));
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let step = |state| match state {
            IDLE => Some(QUEUED),
            RUNNING => Some(WOKEN),
            _ => None,
        };
        if let Ok(IDLE) = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, step)
        {
            self.enqueue();
        }
    }
}

impl Task {
    /// Hands the task to an executor thread. The caller has set `QUEUED`.
    fn enqueue(self: &Arc<Self>) {
        let task = self.clone();
        self.device.spawn(move || task.run());
    }

    fn run(self: Arc<Self>) {
        self.state.store(RUNNING, Ordering::Release);
        let waker = Waker::from(self.clone());
        let mut slot = self.work.lock();
        let over = match slot.as_mut() {
            Some(work) if !self.stopped.load(Ordering::Acquire) => {
                let poll = || work.as_mut().poll(&mut Context::from_waker(&waker));
                !matches!(catch_unwind(AssertUnwindSafe(poll)), Ok(Poll::Pending))
            }
            _ => true,
        };
        drop(slot);
        if over || self.stopped.load(Ordering::Acquire) {
            return self.end();
        }
        let idle = self
            .state
            .compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_err() {
            self.state.store(QUEUED, Ordering::Release);
            self.enqueue();
        } else if self.stopped.load(Ordering::Acquire) {
            // Stopped between the poll and going idle.
            self.stop();
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // A task that is queued or runs sees the flag; one that waits ends here.
        let idle = self
            .state
            .compare_exchange(IDLE, OVER, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_ok() {
            self.end();
        }
    }

    /// Drops the future, outside the lock: its destructors may wake this very task.
    fn end(&self) {
        self.state.store(OVER, Ordering::Release);
        let work = self.work.lock().take();
        drop(work);
    }
}

/// Lets other work have the thread, and cancellation its say.
pub(super) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Something one task at a time may use, in the order in which they asked.
pub(super) struct Turnstile<T>(Mutex<Line<T>>);

struct Line<T> {
    /// Absent while somebody has the turn.
    value: Option<T>,
    next: u64,
    waiting: VecDeque<(u64, Waker)>,
    /// Who was called but has not come yet.
    called: Option<u64>,
}

impl<T> Turnstile<T> {
    pub(super) fn new(value: T) -> Turnstile<T> {
        Turnstile(Mutex::new(Line {
            value: Some(value),
            next: 0,
            waiting: VecDeque::new(),
            called: None,
        }))
    }

    /// The turn, if nobody has it or waits for it.
    pub(super) fn try_enter(&self) -> Option<Turn<'_, T>> {
        let mut line = self.0.lock();
        if line.called.is_some() || !line.waiting.is_empty() {
            return None;
        }
        let value = Some(line.value.take()?);
        Some(Turn { stile: self, value })
    }

    /// Waits for the turn.
    pub(super) async fn enter(&self) -> Turn<'_, T> {
        let mut ticket = Ticket {
            stile: self,
            number: None,
        };
        let value = poll_fn(|cx| ticket.poll(cx)).await;
        Turn {
            stile: self,
            value: Some(value),
        }
    }

    /// Calls the first in line, if the way is free.
    fn call(&self, mut line: MutexGuard<'_, Line<T>>) {
        if line.value.is_none() || line.called.is_some() {
            return;
        }
        if let Some((number, waker)) = line.waiting.pop_front() {
            line.called = Some(number);
            drop(line);
            waker.wake();
        }
    }
}

/// A place in the line; given up when dropped.
struct Ticket<'a, T> {
    stile: &'a Turnstile<T>,
    number: Option<u64>,
}

impl<T> Ticket<'_, T> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<T> {
        let mut line = self.stile.0.lock();
        let mine = match self.number {
            Some(number) => line.called == Some(number),
            None => line.called.is_none() && line.waiting.is_empty(),
        };
        if mine && let Some(value) = line.value.take() {
            line.called = None;
            self.number = None;
            return Poll::Ready(value);
        }
        let waker = cx.waker().clone();
        match self.number {
            None => {
                let number = line.next;
                line.next += 1;
                line.waiting.push_back((number, waker));
                self.number = Some(number);
            }
            Some(number) => {
                if let Some(place) = line.waiting.iter_mut().find(|p| p.0 == number) {
                    place.1 = waker;
                }
            }
        }
        Poll::Pending
    }
}

impl<T> Drop for Ticket<'_, T> {
    fn drop(&mut self) {
        let Some(number) = self.number else {
            return;
        };
        let mut line = self.stile.0.lock();
        line.waiting.retain(|p| p.0 != number);
        if line.called == Some(number) {
            line.called = None;
        }
        self.stile.call(line);
    }
}

/// The value, for as long as it is one's turn.
pub(super) struct Turn<'a, T> {
    stile: &'a Turnstile<T>,
    value: Option<T>,
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value
            .as_ref()
            .expect("a turn has the value until it is dropped")
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
            .as_mut()
            .expect("a turn has the value until it is dropped")
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let mut line = self.stile.0.lock();
        line.value = self.value.take();
        self.stile.call(line);
    }
}

/// Whoever waits for a change of something shared; a change wakes all of them.
#[derive(Default)]
pub(super) struct Wakers(Vec<Waker>);

impl Wakers {
    pub(super) fn add(&mut self, cx: &Context<'_>) {
        if !self.0.iter().any(|w| w.will_wake(cx.waker())) {
            self.0.push(cx.waker().clone());
        }
    }

    /// Those who waited, to be woken outside the lock.
    pub(super) fn take(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.0)
    }
}

/// A number of permits, for which callers wait in the order in which they asked.
#[derive(Clone)]
pub(super) struct Permits(Arc<Mutex<PermitState>>);

struct PermitState {
    free: usize,
    next: u64,
    waiting: VecDeque<(u64, Waker)>,
    /// Who was given a permit but has not come for it yet.
    called: Vec<u64>,
}

/// A permit; given back when dropped.
pub(super) struct Permit(Permits);

impl Permits {
    pub(super) fn new(count: usize) -> Permits {
        Permits(Arc::new(Mutex::new(PermitState {
            free: count.max(1),
            next: 0,
            waiting: VecDeque::new(),
            called: Vec::new(),
        })))
    }

    /// Waits for a permit.
    pub(super) async fn take(&self) -> Permit {
        let mut wait = PermitWait {
            permits: self,
            number: None,
        };
        poll_fn(|cx| wait.poll(cx)).await;
        Permit(self.clone())
    }

    fn give_back(&self) {
        let waker = {
            let mut state = self.0.lock();
            match state.waiting.pop_front() {
                Some((number, waker)) => {
                    state.called.push(number);
                    Some(waker)
                }
                None => {
                    state.free += 1;
                    None
                }
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

struct PermitWait<'a> {
    permits: &'a Permits,
    number: Option<u64>,
}

impl PermitWait<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.permits.0.lock();
        match self.number {
            None if state.free > 0 && state.waiting.is_empty() => {
                state.free -= 1;
                return Poll::Ready(());
            }
            None => {
                let number = state.next;
                state.next += 1;
                state.waiting.push_back((number, cx.waker().clone()));
                self.number = Some(number);
            }
            Some(number) => {
                if let Some(at) = state.called.iter().position(|n| *n == number) {
                    state.called.swap_remove(at);
                    self.number = None;
                    return Poll::Ready(());
                }
                if let Some(place) = state.waiting.iter_mut().find(|p| p.0 == number) {
                    place.1 = cx.waker().clone();
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for PermitWait<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else {
            return;
        };
        let called = {
            let mut state = self.permits.0.lock();
            state.waiting.retain(|p| p.0 != number);
            let at = state.called.iter().position(|n| *n == number);
            at.map(|at| state.called.swap_remove(at))
        };
        if called.is_some() {
            self.permits.give_back();
        }
    }
}

/// A value that another thread will bring.
pub(super) struct Promise<T>(Arc<Mutex<(Option<T>, Option<Waker>)>>);

/// The other end of a [`Promise`].
pub(super) struct Fulfil<T>(Arc<Mutex<(Option<T>, Option<Waker>)>>);

pub(super) fn promise<T>() -> (Fulfil<T>, Promise<T>) {
    let shared = Arc::new(Mutex::new((None, None)));
    (Fulfil(shared.clone()), Promise(shared))
}

impl<T> Fulfil<T> {
    pub(super) fn set(self, value: T) {
        let waker = {
            let mut shared = self.0.lock();
            shared.0 = Some(value);
            shared.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Promise<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut shared = self.0.lock();
        match shared.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                shared.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Runs `work` on an executor thread and ends `op` with its outcome; a cancelled step ends both.
pub(super) fn run_op(
    op: AsyncOp,
    work: impl Future<Output = Result<Vec<Tensor>>> + Send + 'static,
) {
    let env = op.env().clone();
    let pending = Arc::new(Pending(Mutex::new((Some(op), None))));
    let on_cancel = pending.clone();
    let token = match env
        .cancellation
        .register(move |_| on_cancel.finish(Err(cancelled())))
    {
        Ok(token) => token,
        Err(_) => return pending.finish(Err(cancelled())),
    };
    // Ends the op also when the future is dropped or panics.
    let end = EndOp {
        pending: pending.clone(),
        cancellation: env.cancellation.clone(),
        token,
    };
    let task = spawn(&env.device, async move {
        let outcome = work.await;
        end.pending.finish(outcome);
        drop(end);
    });
    let over = {
        let mut pending = pending.0.lock();
        match pending.0 {
            Some(_) => {
                pending.1 = Some(task);
                None
            }
            // Over already; dropped outside the lock.
            None => Some(task),
        }
    };
    drop(over);
}

fn cancelled() -> Status {
    Status::cancelled("Operation was cancelled")
}

/// An op and the task that works for it.
struct Pending(Mutex<(Option<AsyncOp>, Option<TaskHandle>)>);

impl Pending {
    fn finish(&self, outcome: Result<Vec<Tensor>>) {
        let (op, task) = {
            let mut pending = self.0.lock();
            (pending.0.take(), pending.1.take())
        };
        if let Some(op) = op {
            op.finish(outcome);
        }
        drop(task);
    }
}

struct EndOp {
    pending: Arc<Pending>,
    cancellation: Arc<Cancellation>,
    token: CancelToken,
}

impl Drop for EndOp {
    fn drop(&mut self) {
        self.cancellation.deregister(self.token);
        self.pending.finish(Err(cancelled()));
    }
}
