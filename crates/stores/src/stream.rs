//! Files that readers watch while they grow, where storing is slow: what is written waits here, and a task stores it
//! behind the writer's back. A flush asks for that and does not wait, so that training does not wait for a storage
//! that is away; only a sync waits, and tells what failed.

use crate::call::{Caller, Failure, runtime, wait};
use bytes::Bytes;
use downpour_formats::StreamFile;
use downpour_graph::{Result, Status};
use downpour_tensor::account::stop_point;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// From so many waiting bytes on they are stored without a flush,
const KICK: usize = 8 << 20;
/// and from so many on the writer waits.
const MOST_WAITING: usize = 64 << 20;
/// How often a waiting thread looks whether its step still wants it.
const LOOK: Duration = Duration::from_millis(50);
/// How long one who drops the file unsynced waits for the last bytes.
const FAREWELL: Duration = Duration::from_secs(5);

/// Where appended bytes go.
pub(crate) trait Sink: Send + fmt::Debug + 'static {
    /// Stores bytes behind all earlier ones, durably. After a failure it is called again with the same ones.
    fn store(
        &mut self,
        bytes: &Bytes,
    ) -> impl Future<Output = std::result::Result<(), Failure>> + Send;

    /// How long to wait before more is stored, so that many small flushes become few.
    fn pause(&self) -> Duration;
}

/// A file that grows at a remote place.
pub(crate) struct RemoteStream {
    shared: Arc<Shared>,
    path: String,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the task that stores.
    wake: tokio::sync::Notify,
    /// Tells that the task has ended.
    ended: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    /// Whether a flush or a full buffer asked for storing.
    asked: bool,
    /// Whether somebody waits for it.
    urgent: bool,
    /// Whether bytes are under way.
    storing: bool,
    /// Whether some failed on their way and wait with the task.
    carried: bool,
    /// Why the last try failed, after which the next sync tries again.
    failed: Option<Status>,
    closed: bool,
    /// Whether the task has ended.
    finished: bool,
}

impl State {
    fn is_stored(&self) -> bool {
        self.waiting.is_empty() && !self.storing && !self.carried
    }
}

impl fmt::Debug for RemoteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteStream({})", self.path)
    }
}

impl RemoteStream {
    pub(crate) fn new(sink: impl Sink, caller: Caller, path: &str) -> Result<RemoteStream> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            wake: tokio::sync::Notify::new(),
            ended: tokio::sync::Notify::new(),
        });
        runtime()?.spawn(keep_storing(shared.clone(), sink, caller, path.to_owned()));
        Ok(RemoteStream {
            shared,
            path: path.to_owned(),
        })
    }

    fn ask(&self, urgent: bool) {
        let mut state = self.shared.state.lock();
        state.asked |= !state.waiting.is_empty() || (urgent && state.carried);
        state.urgent |= urgent;
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Waits until all is stored.
    fn drain(&self) -> Result<()> {
        self.shared.state.lock().failed = None;
        self.ask(true);
        let mut state = self.shared.state.lock();
        loop {
            if let Some(why) = &state.failed {
                return Err(why.clone());
            }
            if state.is_stored() {
                state.urgent = false;
                return Ok(());
            }
            if self.shared.changed.wait_for(&mut state, LOOK).timed_out() {
                stop_point();
            }
        }
    }
}

async fn keep_storing(shared: Arc<Shared>, sink: impl Sink, caller: Caller, path: String) {
    let sink = tokio::sync::Mutex::new(sink);
    // Bytes that a failed try had are tried again before others.
    let mut carried = Bytes::new();
    loop {
        let is_asked = {
            let mut state = shared.state.lock();
            if state.asked || (state.closed && !state.waiting.is_empty()) {
                state.asked = false;
                state.storing = true;
                let mut all = Vec::from(std::mem::take(&mut carried));
                all.append(&mut state.waiting);
                carried = Bytes::from(all);
                true
            } else if state.closed {
                break;
            } else {
                false
            }
        };
        if !is_asked {
            shared.wake.notified().await;
            continue;
        }
        let stored = caller
            .repeat(&path, |_| async { sink.lock().await.store(&carried).await })
            .await;
        let pause = sink.lock().await.pause();
        let is_stored = stored.is_ok();
        {
            let mut state = shared.state.lock();
            state.storing = false;
            state.carried = !is_stored;
            match stored {
                Ok(()) => carried = Bytes::new(),
                Err(why) => {
                    warn!("{why}; what was written to it waits");
                    state.failed = Some(why);
                    if state.closed {
                        break;
                    }
                }
            }
        }
        shared.changed.notify_all();
        if is_stored {
            let pausing = async {
                while !shared.state.lock().urgent {
                    shared.wake.notified().await;
                }
            };
            // Whoever waits for the bytes ends the pause.
            let _ = tokio::time::timeout(pause, pausing).await;
        }
    }
    shared.state.lock().finished = true;
    shared.ended.notify_one();
}

impl StreamFile for RemoteStream {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        let waiting = {
            let mut state = self.shared.state.lock();
            state.waiting.extend_from_slice(data);
            state.waiting.len()
        };
        if waiting > MOST_WAITING {
            self.drain()?;
        } else if waiting > KICK {
            self.ask(false);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.ask(false);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.drain()
    }
}

impl Drop for RemoteStream {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        state.urgent = true;
        drop(state);
        self.shared.wake.notify_one();
        let shared = self.shared.clone();
        let last = async move {
            let end = tokio::time::Instant::now() + FAREWELL;
            loop {
                if shared.state.lock().finished || tokio::time::Instant::now() > end {
                    return Ok(());
                }
                let _ = tokio::time::timeout(LOOK, shared.ended.notified()).await;
            }
        };
        if !std::thread::panicking() {
            // What could not be stored was warned of.
            let _ = wait(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Patience;

    #[derive(Debug, Clone, Default)]
    struct Memory {
        stored: Arc<Mutex<Vec<Vec<u8>>>>,
        failures: Arc<Mutex<u32>>,
    }

    impl Sink for Memory {
        async fn store(&mut self, bytes: &Bytes) -> std::result::Result<(), Failure> {
            let mut failures = self.failures.lock();
            if *failures > 0 {
                *failures -= 1;
                return Err(Failure::lasting(Status::unavailable("x; away")));
            }
            self.stored.lock().push(bytes.to_vec());
            Ok(())
        }

        fn pause(&self) -> Duration {
            Duration::from_secs(3600)
        }
    }

    fn stream() -> (Memory, RemoteStream) {
        let memory = Memory::default();
        let caller = Caller::new(Patience::default());
        let stream = RemoteStream::new(memory.clone(), caller, "x").unwrap();
        (memory, stream)
    }

    #[test]
    fn a_sync_has_stored_everything_in_order() {
        let (memory, mut stream) = stream();
        for i in 0..100u8 {
            stream.write(&[i]).unwrap();
            stream.flush().unwrap();
        }
        stream.sync().unwrap();
        let stored = memory.stored.lock().concat();
        assert!(stored.iter().copied().eq(0..100));
        // A pause of an hour has made one of many flushes, or a few.
        assert!(memory.stored.lock().len() <= 3);
    }

    #[test]
    fn what_failed_is_told_by_the_sync_and_stored_by_the_next() {
        let (memory, mut stream) = stream();
        *memory.failures.lock() = 1;
        stream.write(b"one").unwrap();
        assert_eq!(stream.sync().unwrap_err().message, "x; away");
        stream.write(b"two").unwrap();
        stream.sync().unwrap();
        assert_eq!(memory.stored.lock().concat(), b"onetwo");
    }

    #[test]
    fn a_dropped_stream_stores_its_rest() {
        let (memory, mut stream) = stream();
        stream.write(b"rest").unwrap();
        drop(stream);
        assert_eq!(memory.stored.lock().concat(), b"rest");
    }
}
