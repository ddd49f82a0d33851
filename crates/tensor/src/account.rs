//! Who pays for memory: accounts with limits, one below the other (process, session, step), and which of them the
//! calling thread works for.
//!
//! Buffers of [`COUNTED`] bytes and more are paid for when they are made and paid back when they are dropped, wherever
//! that happens; smaller ones are left out, so that making one costs nothing. Inside a kernel ([`in_kernel`]) an account without
//! room refuses: [`reserve`] says so as an error, and where memory is made by something that cannot fail (a copy before a
//! write, a vector that became a tensor) the kernel is unwound with [`Refused`] as its payload, before the memory is
//! kept. Elsewhere memory is only counted. In the same way a kernel that may be given up ([`stop_point`]) is unwound with [`Stopped`].

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers from this size on are counted.
pub const COUNTED: usize = 64 << 10;

/// Whose memory an account counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Everything that a task of this process has.
    Process,
    /// What was made in the name of a session, by its handle.
    Session(String),
    /// What was made by a step, by its number.
    Step(u64),
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Process => f.write_str("the process"),
            Holder::Session(handle) => write!(f, "session {handle}"),
            Holder::Step(number) => write!(f, "step {number}"),
        }
    }
}

/// Bytes that somebody holds, and may hold.
#[derive(Debug)]
pub struct Account {
    holder: Holder,
    limit: usize,
    used: AtomicUsize,
    above: Option<Arc<Account>>,
}

/// Why there is no memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} more bytes are needed, and {holder} holds {used} of the {limit} bytes that it may"
)]
pub struct Refused {
    /// What was asked for.
    pub bytes: usize,
    /// Who has too much.
    pub holder: Holder,
    /// What that one holds.
    pub used: usize,
    /// What that one may hold.
    pub limit: usize,
}

/// A kernel was given up because its step has ended.
#[derive(Clone, Copy, Debug)]
pub struct Stopped;

impl Account {
    /// An account on its own.
    pub fn new(holder: Holder, limit: usize) -> Arc<Account> {
        Arc::new(Account {
            holder,
            limit,
            used: AtomicUsize::new(0),
            above: None,
        })
    }

    /// One below this: what it pays, this one pays too.
    pub fn below(self: &Arc<Self>, holder: Holder, limit: usize) -> Arc<Account> {
        Arc::new(Account {
            holder,
            limit,
            used: AtomicUsize::new(0),
            above: Some(self.clone()),
        })
    }

    /// What is held.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What may be held.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How much more may be held, here and above.
    pub fn room(&self) -> usize {
        self.levels()
            .map(|a| a.limit.saturating_sub(a.used()))
            .min()
            .unwrap_or(0)
    }

    /// Pays, here and above, or nowhere.
    pub fn try_take(&self, bytes: usize) -> Result<(), Refused> {
        for (paid, account) in self.levels().enumerate() {
            let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= account.limit);
            let taken = (account.used).fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
            if let Err(used) = taken {
                for before in self.levels().take(paid) {
                    before.used.fetch_sub(bytes, Ordering::Relaxed);
                }
                return Err(Refused {
                    bytes,
                    holder: account.holder.clone(),
                    used,
                    limit: account.limit,
                });
            }
        }
        Ok(())
    }

    /// Pays whether there is room or not.
    pub fn take(&self, bytes: usize) {
        for account in self.levels() {
            account.used.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Pays back.
    pub fn give(&self, bytes: usize) {
        for account in self.levels() {
            account.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn levels(&self) -> impl Iterator<Item = &Account> {
        std::iter::successors(Some(self), |a| a.above.as_deref())
    }
}

/// Bytes that are paid for until this is dropped. A copy is paid for again.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Clone for Charge {
    fn clone(&self) -> Charge {
        self.account.take(self.bytes);
        Charge {
            account: self.account.clone(),
            bytes: self.bytes,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.give(self.bytes);
    }
}

impl Charge {
    /// Pays for `bytes`, if they are enough to count; see [`pay_for`].
    pub(crate) fn new(bytes: usize) -> Option<Charge> {
        let account = pay_for(bytes)?;
        Some(Charge { account, bytes })
    }
}

/// What a queue or a table holds in pieces too small to be counted by themselves. Its account is asked in portions.
#[derive(Debug)]
pub struct Holding {
    account: Option<Arc<Account>>,
    /// What is held, and what is paid for.
    bytes: Mutex<(usize, usize)>,
}

impl Holding {
    /// A holding of whoever the calling thread works for: of the session, as it may outlive the step.
    pub fn new() -> Holding {
        let account = PAYER.with_borrow(|payer| {
            let account = payer.as_ref()?.account();
            match (&account.holder, &account.above) {
                (Holder::Step(_), Some(above)) => Some(above.clone()),
                _ => Some(account.clone()),
            }
        });
        Holding {
            account,
            bytes: Mutex::default(),
        }
    }

    /// What is held.
    pub fn bytes(&self) -> usize {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Holds more, if there is room.
    pub fn add(&self, more: usize) -> Result<(), Refused> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let held = bytes.0.saturating_add(more);
        if let Some(account) = &self.account
            && held > bytes.1
        {
            let portion = (held - bytes.1).next_multiple_of(COUNTED);
            account.try_take(portion)?;
            bytes.1 += portion;
        }
        bytes.0 = held;
        Ok(())
    }

    /// Holds so much from now on, whether there is room or not: the memory is taken already.
    pub fn set(&self, now: usize) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let paid = now.next_multiple_of(COUNTED);
        if let Some(account) = &self.account {
            account.take(paid.saturating_sub(bytes.1));
            account.give(bytes.1.saturating_sub(paid));
        }
        *bytes = (now, paid);
    }

    /// Holds less.
    pub fn sub(&self, less: usize) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.0 = bytes.0.saturating_sub(less);
        // One portion is kept: what goes back and forth asks nobody.
        let spare = bytes.1.saturating_sub(bytes.0) / COUNTED * COUNTED;
        if let Some(account) = &self.account
            && spare > COUNTED
        {
            account.give(spare - COUNTED);
            bytes.1 -= spare - COUNTED;
        }
    }
}

impl Default for Holding {
    fn default() -> Holding {
        Holding::new()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let bytes = self.bytes.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = &self.account {
            account.give(bytes.1);
        }
    }
}

/// Whom a thread works for.
pub trait Payer: Send + Sync {
    /// Who pays for what is made.
    fn account(&self) -> &Arc<Account>;

    /// Whether nobody waits for the result any more.
    fn is_stopped(&self) -> bool;
}

/// What the calling thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Anything but to run a kernel: memory is counted, never refused.
    Other,
    /// Runs a kernel that must come to its end, as one that changes a variable.
    Kernel,
    /// Runs a kernel that may be given up.
    Stoppable,
}

thread_local! {
    static PAYER: RefCell<Option<Arc<dyn Payer>>> = const { RefCell::new(None) };
    static DOING: Cell<Doing> = const { Cell::new(Doing::Other) };
    /// What is paid for and not yet made.
    static RESERVED: Cell<usize> = const { Cell::new(0) };
}

/// The calling thread works for somebody until this is dropped.
pub struct Working {
    before: Option<Arc<dyn Payer>>,
    doing: Doing,
    reserved: usize,
    /// Belongs to its thread.
    _here: std::marker::PhantomData<*const ()>,
}

/// Works for `payer`.
pub fn work_for(payer: Arc<dyn Payer>) -> Working {
    Working {
        before: PAYER.replace(Some(payer)),
        doing: DOING.replace(Doing::Other),
        reserved: RESERVED.replace(0),
        _here: std::marker::PhantomData,
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let last = PAYER.replace(self.before.take());
        DOING.set(self.doing);
        RESERVED.set(self.reserved);
        drop(last);
    }
}

/// Runs a kernel: memory without room is refused, and if it `can_stop`, it is unwound at the next [`stop_point`] after
/// its step has ended.
pub fn in_kernel<T>(can_stop: bool, run: impl FnOnce() -> T) -> T {
    let doing = match can_stop {
        true => Doing::Stoppable,
        false => Doing::Kernel,
    };
    let _end = Run {
        doing: DOING.replace(doing),
        reserved: RESERVED.replace(0),
    };
    run()
}

struct Run {
    doing: Doing,
    reserved: usize,
}

impl Drop for Run {
    fn drop(&mut self) {
        DOING.set(self.doing);
        let left = RESERVED.replace(self.reserved);
        if left > 0 {
            PAYER.with_borrow(|payer| {
                if let Some(payer) = payer {
                    payer.account().give(left);
                }
            });
        }
    }
}

/// Makes sure that a tensor of so many bytes can be made next. Said twice of the same tensor, it is paid for once.
pub fn reserve(bytes: usize) -> Result<(), Refused> {
    let reserved = RESERVED.get();
    if bytes < COUNTED || bytes <= reserved {
        return Ok(());
    }
    PAYER.with_borrow(|payer| {
        let Some(payer) = payer else { return Ok(()) };
        payer.account().try_take(bytes - reserved)?;
        match DOING.get() {
            Doing::Other => payer.account().give(bytes - reserved),
            _ => RESERVED.set(bytes),
        }
        Ok(())
    })
}

/// How many bytes the thread may still make, if somebody counts.
pub fn room() -> Option<usize> {
    PAYER.with_borrow(|payer| payer.as_ref().map(|p| p.account().room()))
}

/// Why so many bytes cannot be had now, if they cannot.
pub fn refusal(bytes: usize) -> Option<Refused> {
    PAYER.with_borrow(|payer| {
        let account = payer.as_ref()?.account();
        account.try_take(bytes).map(|()| account.give(bytes)).err()
    })
}

/// Pays for memory that is being made; `None` if nobody counts it. Unwinds a kernel that may not have it.
pub(crate) fn pay_for(bytes: usize) -> Option<Arc<Account>> {
    if bytes < COUNTED {
        return None;
    }
    let paid = PAYER.with_borrow(|payer| {
        let account = payer.as_ref()?.account();
        let reserved = RESERVED.get();
        let missing = bytes.saturating_sub(reserved);
        if DOING.get() == Doing::Other {
            account.take(missing);
        } else if let Err(refused) = account.try_take(missing) {
            return Some(Err(refused));
        }
        RESERVED.set(reserved.saturating_sub(bytes));
        Some(Ok(account.clone()))
    });
    match paid? {
        Ok(account) => Some(account),
        Err(refused) => resume_unwind(Box::new(refused)),
    }
}

/// Bytes of work after which a long loop asks whether to go on: a fraction of a millisecond.
pub const STRIDE: usize = 1 << 20;

/// Gives the running kernel up if nobody waits for it any more. Called by loops about every [`STRIDE`] bytes.
pub fn stop_point() {
    if is_stopped() {
        resume_unwind(Box::new(Stopped));
    }
}

/// Whether the running kernel is to be given up.
pub fn is_stopped() -> bool {
    DOING.get() == Doing::Stoppable
        && PAYER.with_borrow(|payer| payer.as_ref().is_some_and(|p| p.is_stopped()))
}

/// Whom the calling thread works for and how, for another thread that helps it.
#[derive(Clone)]
pub struct Context {
    payer: Option<Arc<dyn Payer>>,
    doing: Doing,
}

impl Context {
    /// That of the calling thread.
    pub fn current() -> Context {
        Context {
            payer: PAYER.with_borrow(Option::clone),
            doing: DOING.get(),
        }
    }

    /// Works on behalf of the other thread until this is dropped.
    pub fn help(&self) -> Working {
        Working {
            before: PAYER.replace(self.payer.clone()),
            doing: DOING.replace(self.doing),
            reserved: RESERVED.replace(0),
            _here: std::marker::PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, DType, Tensor};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicBool;

    struct Someone {
        account: Arc<Account>,
        stopped: AtomicBool,
    }

    impl Payer for Someone {
        fn account(&self) -> &Arc<Account> {
            &self.account
        }

        fn is_stopped(&self) -> bool {
            self.stopped.load(Ordering::Relaxed)
        }
    }

    fn someone(limits: [usize; 2]) -> (Arc<Account>, Arc<Someone>) {
        let process = Account::new(Holder::Process, limits[0]);
        let account = process.below(Holder::Step(7), limits[1]);
        let stopped = AtomicBool::new(false);
        (process, Arc::new(Someone { account, stopped }))
    }

    const MB: usize = 1 << 20;

    #[test]
    fn large_buffers_are_paid_for_until_they_are_dropped() {
        let (process, payer) = someone([10 * MB, 10 * MB]);
        let small = Buffer::zeroed(MB);
        let working = work_for(payer.clone());
        let large = Buffer::zeroed(MB);
        let copy = large.clone();
        let _tiny = Buffer::zeroed(COUNTED - 1);
        assert_eq!((process.used(), payer.account.used()), (MB, MB));
        drop(working);
        drop((large, small));
        assert_eq!(process.used(), MB);
        drop(copy);
        assert_eq!(process.used(), 0);
        let _working = work_for(payer);
        let text = Tensor::string(vec![b'x'; MB]);
        assert!(process.used() >= MB);
        let mut other = text.clone();
        other.make_mut_strings().unwrap().clear();
        assert!(process.used() >= 2 * MB);
        drop((text, other));
        assert_eq!(process.used(), 0);
    }

    #[test]
    fn a_kernel_without_room_is_refused_and_others_only_counted() {
        let (process, payer) = someone([4 * MB, 3 * MB]);
        let _working = work_for(payer.clone());
        let held = Buffer::zeroed(2 * MB);
        let refused = in_kernel(false, || reserve(2 * MB)).unwrap_err();
        assert_eq!((refused.holder, refused.used), (Holder::Step(7), 2 * MB));
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            in_kernel(false, || Tensor::zeros(DType::Float, [MB]).unwrap())
        }));
        let payload = unwound.err().unwrap();
        let refused = payload.downcast_ref::<Refused>().unwrap();
        assert_eq!((refused.bytes, refused.limit), (4 * MB, 3 * MB));
        let over = Buffer::zeroed(2 * MB);
        assert_eq!(process.used(), 4 * MB);
        drop((held, over));
        assert_eq!(process.used(), 0);
    }

    #[test]
    fn what_is_reserved_is_paid_for_once_and_given_back_if_it_is_not_used() {
        let (process, payer) = someone([4 * MB, 4 * MB]);
        let _working = work_for(payer);
        let made = in_kernel(true, || {
            reserve(3 * MB).unwrap();
            reserve(3 * MB).unwrap();
            assert_eq!(process.used(), 3 * MB);
            let made = Buffer::from_vec(vec![0u8; 2 * MB]);
            assert_eq!(process.used(), 3 * MB);
            made
        });
        assert_eq!(process.used(), 2 * MB);
        drop(made);
        assert_eq!(process.used(), 0);
    }

    #[test]
    fn a_loop_stops_only_where_it_may() {
        let (_, payer) = someone([MB, MB]);
        let _working = work_for(payer.clone());
        in_kernel(true, stop_point);
        payer.stopped.store(true, Ordering::Relaxed);
        stop_point();
        in_kernel(false, stop_point);
        let unwound = catch_unwind(|| in_kernel(true, stop_point));
        assert!(unwound.unwrap_err().is::<Stopped>());
        assert!(!is_stopped());
    }

    #[test]
    fn holdings_ask_in_portions_and_pay_back() {
        let (process, payer) = someone([MB, 0]);
        let holding = {
            let _working = work_for(payer);
            Holding::new()
        };
        holding.add(1).unwrap();
        assert_eq!((holding.bytes(), process.used()), (1, COUNTED));
        holding.add(MB - COUNTED - 1).unwrap();
        assert_eq!(
            holding.add(2 * COUNTED).unwrap_err().holder,
            Holder::Process
        );
        holding.sub(MB / 2);
        assert!(process.used() <= MB / 2 + COUNTED);
        drop(holding);
        assert_eq!(process.used(), 0);
    }
}
