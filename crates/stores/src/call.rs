//! From callers that wait to clients that do not: the runtime that requests run on, and how often and for how long a
//! request that fails in passing is made again. A thread that waits here ends its wait when its step is cancelled.

use downpour_graph::{Code, Result, Status};
use downpour_tensor::account::stop_point;
use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};
use tracing::warn;

/// Threads of the runtime: the clients copy and check what they receive, which one core does at the speed of a network.
const THREADS: usize = 2;
/// How often a waiting thread looks whether its step still wants the answer.
const LOOK: Duration = Duration::from_millis(50);
/// The first pause before a request is made again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// How long a request is repeated.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// With a service that has not answered yet.
    pub first: Duration,
    /// With one that has.
    pub steady: Duration,
    /// How long one try may take.
    pub attempt: Duration,
    /// How many tries there are at most.
    pub tries: u32,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            first: Duration::from_secs(4),
            // A NameNode that restarts reads its image and waits for reports of blocks first.
            steady: Duration::from_secs(120),
            attempt: Duration::from_secs(60),
            tries: u32::MAX,
        }
    }
}

/// Why a request failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// Whether the same request may succeed a little later.
    pub(crate) is_transient: bool,
}

impl Failure {
    pub(crate) fn lasting(status: Status) -> Failure {
        Failure {
            status,
            is_transient: false,
        }
    }

    pub(crate) fn passing(status: Status) -> Failure {
        Failure {
            status,
            is_transient: true,
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::lasting(status)
    }
}

pub(crate) type Outcome<T> = std::result::Result<T, Failure>;

/// The runtime of all clients, begun by the first request.
pub(crate) fn runtime() -> Result<&'static Handle> {
    static RUNTIME: LazyLock<std::io::Result<Runtime>> = LazyLock::new(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("stores")
            .enable_all()
            .build()
    });
    match &*RUNTIME {
        Ok(runtime) => Ok(runtime.handle()),
        Err(e) => Err(Status::unavailable(format!(
            "no threads for remote files: {e}"
        ))),
    }
}

/// Makes requests to one service.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    patience: Patience,
    /// Whether it has ever answered.
    reached: Arc<AtomicBool>,
}

impl Caller {
    pub(crate) fn new(patience: Patience) -> Caller {
        Caller {
            patience,
            reached: Arc::default(),
        }
    }

    /// Makes a request until it succeeds, fails for good or patience ends; waits for that. `request` is told how
    /// many times it was made before: what an earlier try may have done without an answer is for it to recognise.
    pub(crate) fn call<T, F, W>(&self, path: &str, request: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(u32) -> W + Send + 'static,
        W: Future<Output = Outcome<T>> + Send,
    {
        let (this, path) = (self.clone(), path.to_owned());
        wait(async move { this.repeat(&path, request).await })
    }

    /// As [`Self::call`], for one who is on the runtime already.
    pub(crate) async fn repeat<T, F, W>(&self, path: &str, request: F) -> Result<T>
    where
        F: Fn(u32) -> W,
        W: Future<Output = Outcome<T>>,
    {
        let begin = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut earlier: Option<String> = None;
        for tries in 0.. {
            let limit = match self.reached.load(Ordering::Relaxed) {
                true => self.patience.steady,
                false => self.patience.first,
            };
            let left = limit.saturating_sub(begin.elapsed());
            let time = self.patience.attempt.min(left);
            let failure = match tokio::time::timeout(time, request(tries)).await {
                Ok(Ok(value)) => {
                    self.reached.store(true, Ordering::Relaxed);
                    return Ok(value);
                }
                Ok(Err(failure)) if !failure.is_transient => return Err(failure.status),
                Ok(Err(failure)) => failure.status.message,
                // A last try that was cut short says less than the one before.
                Err(_) => earlier.unwrap_or_else(|| {
                    format!("{path}; no answer within {:.1} s", time.as_secs_f64())
                }),
            };
            // Others that failed at the same moment come back at another one.
            let spread = 0.5 + (RandomState::new().hash_one(tries) % 1024) as f64 / 1024.0;
            let wait = pause.mul_f64(spread);
            if begin.elapsed() + wait >= limit || tries + 1 >= self.patience.tries {
                let seconds = begin.elapsed().as_secs_f64();
                let count = match tries + 1 {
                    1 => "one try".to_owned(),
                    n => format!("{n} tries"),
                };
                return Err(Status::new(
                    Code::DeadlineExceeded,
                    format!("{failure}; gave up after {count} in {seconds:.1} s"),
                ));
            }
            if tries == 0 && limit == self.patience.steady {
                warn!("{failure}; trying again for {} s", limit.as_secs());
            }
            earlier = Some(failure);
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(Status::internal("a request was never made"))
    }
}

/// Runs work on the runtime and waits for it.
pub(crate) fn wait<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (done, answer) = sync_channel(1);
    let task = runtime()?.spawn(async move {
        // Nobody listens any more when the step was cancelled.
        let _ = done.send(work.await);
    });
    let task = Ending(task);
    loop {
        match answer.recv_timeout(LOOK) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => stop_point(),
            Err(RecvTimeoutError::Disconnected) => {
                drop(task);
                return Err(Status::internal("a request to a remote storage panicked"));
            }
        }
    }
}

/// Work that ends with whoever waits for it.
struct Ending(tokio::task::JoinHandle<()>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn caller(first: u64, steady: u64) -> Caller {
        Caller::new(Patience {
            first: Duration::from_millis(first),
            steady: Duration::from_millis(steady),
            ..Patience::default()
        })
    }

    fn passing() -> Failure {
        Failure {
            status: Status::unavailable("x; away"),
            is_transient: true,
        }
    }

    #[test]
    fn what_fails_in_passing_is_made_again() {
        let count = Arc::new(AtomicU32::new(0));
        let seen = count.clone();
        let value = caller(60_000, 60_000).call("x", move |tries| {
            seen.store(tries, Ordering::Relaxed);
            async move { if tries < 2 { Err(passing()) } else { Ok(tries) } }
        });
        assert_eq!((value.unwrap(), count.load(Ordering::Relaxed)), (2, 2));
    }

    #[test]
    fn what_fails_for_good_is_not() {
        let failed = caller(60_000, 60_000).call("x", |tries| async move {
            assert_eq!(tries, 0);
            Err::<(), _>(Failure::lasting(Status::not_found("x; gone")))
        });
        assert_eq!(failed.unwrap_err().message, "x; gone");
    }

    #[test]
    fn a_service_that_never_answered_is_given_up_sooner() {
        let caller = caller(300, 3_600_000);
        let silent = |_| async { Err::<(), _>(passing()) };
        let failed = caller.call("x", silent).unwrap_err();
        assert_eq!(failed.code, Code::DeadlineExceeded);
        assert!(
            failed.message.starts_with("x; away; gave up after "),
            "{failed}"
        );
        // Without an end of its own, a try has that of all.
        let failed = caller.call("x", |_| std::future::pending::<Outcome<()>>());
        assert!(
            failed
                .unwrap_err()
                .message
                .contains("no answer within 0.3 s")
        );
    }

    #[test]
    fn a_panic_reaches_the_caller_as_an_error() {
        let failed = wait(async {
            if runtime().is_ok() {
                panic!("on purpose")
            } else {
                Ok(())
            }
        });
        assert_eq!(failed.unwrap_err().code, Code::Internal);
    }
}
