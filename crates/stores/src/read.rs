//! Reading a remote file. One who reads from front to back gets one long answer, whose bytes arrive ahead of it; who
//! reads here and there gets a window around each place, and large pieces in parts at once. Nothing is kept between files.

use crate::call::{Caller, Failure, Outcome, runtime};
use bytes::Bytes;
use downpour_formats::ReadAt;
use downpour_graph::{Result, Status};
use downpour_tensor::account::stop_point;
use futures_util::{Stream, StreamExt as _};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// What is asked for around a place: most files that are read in whole are smaller.
const WINDOW: u64 = 1 << 20;
/// What one answer has at most, for one who reads on,
const RUN: u64 = 256 << 20;
/// and how much of it may wait for its reader.
const AHEAD: u64 = 24 << 20;
/// From so many bytes on a piece that no window has is read by itself,
const LARGE: u64 = 4 << 20;
/// in parts of this size at once.
const PART: u64 = 8 << 20;
/// Answers that ended at once, one after the other, after which a file is given up.
const EMPTY_ANSWERS: u32 = 5;
/// A connection that brings nothing for so long is lost.
const SILENCE: Duration = Duration::from_secs(30);
/// For how long a file that was seen to end is believed to end there.
const FRESH: Duration = Duration::from_secs(1);
/// How often a waiting thread looks whether its step still wants the bytes.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) type Work<T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;

/// Bytes in the order of the file.
pub(crate) type Pieces = Pin<Box<dyn Stream<Item = Outcome<Bytes>> + Send>>;

/// A remote file as its client shows it.
pub(crate) trait Source: Send + Sync + fmt::Debug {
    /// The bytes of a range that lies within the file.
    fn fetch(&self, range: Range<u64>) -> Work<Bytes>;

    /// The bytes of a range as they arrive.
    fn stream(&self, range: Range<u64>) -> Work<Pieces>;

    /// Bytes that the file has now.
    fn length(&self) -> Work<u64>;
}

/// An open remote file.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    source: Arc<dyn Source>,
    caller: Caller,
    path: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// When that was asked.
    asked: Instant,
    window: Option<Arc<Window>>,
    /// Neighbours, in order: of one who reads on the first is read, the second begins where it ends.
    runs: VecDeque<Arc<Run>>,
    /// Where a reader who reads on will go on.
    next: u64,
}

/// A range that was asked for.
#[derive(Debug)]
struct Window {
    range: Range<u64>,
    bytes: Mutex<Option<Result<Bytes>>>,
    arrived: Condvar,
}

impl RemoteFile {
    /// A file of which it is known how long it is.
    pub(crate) fn new(source: Arc<dyn Source>, caller: Caller, path: &str, len: u64) -> RemoteFile {
        RemoteFile {
            source,
            caller,
            path: path.to_owned(),
            state: Mutex::new(State {
                len,
                asked: Instant::now(),
                window: None,
                runs: VecDeque::new(),
                next: 0,
            }),
        }
    }

    /// How far the file goes, asked anew if `at` is past what was last heard.
    fn end(&self, at: u64) -> Result<u64> {
        {
            let state = self.state.lock();
            if at < state.len || state.asked.elapsed() < FRESH {
                return Ok(state.len);
            }
        }
        let source = self.source.clone();
        let len = self.caller.call(&self.path, move |_| source.length())?;
        let mut state = self.state.lock();
        state.len = len;
        state.asked = Instant::now();
        Ok(len)
    }

    fn ask(&self, range: Range<u64>) -> Result<Arc<Window>> {
        let window = Arc::new(Window {
            range: range.clone(),
            bytes: Mutex::default(),
            arrived: Condvar::new(),
        });
        let (source, caller) = (self.source.clone(), self.caller.clone());
        let (path, told) = (self.path.clone(), window.clone());
        runtime()?.spawn(async move {
            let bytes = fetch(&caller, &path, &source, range).await;
            *told.bytes.lock() = Some(bytes);
            told.arrived.notify_all();
        });
        Ok(window)
    }

    /// What has the byte at `at`, which is in the file, or will have it.
    fn find(&self, at: u64, wanted: u64) -> Result<Found> {
        let state = &mut *self.state.lock();
        let goes_on = at == state.next;
        if goes_on {
            while state.runs.front().is_some_and(|run| run.range.end <= at) {
                state.runs.pop_front();
            }
        }
        let run = state.runs.iter().find(|run| run.has(at)).cloned();
        let window = state.window.clone().filter(|w| w.range.contains(&at));
        let found = match (run, window) {
            (Some(run), _) => Found::Run(run),
            (None, Some(window)) => Found::Window(window),
            (None, None) if goes_on && at > 0 => {
                state.runs.clear();
                let run = self.run(at, state.len)?;
                state.runs.push_back(run.clone());
                Found::Run(run)
            }
            (None, None) if wanted >= LARGE => return Ok(Found::Large),
            (None, None) => {
                state.runs.clear();
                let size = wanted.max(WINDOW);
                let window = self.ask(at..(at + size).min(state.len))?;
                state.window = Some(window.clone());
                Found::Window(window)
            }
        };
        // What follows is asked for before it is needed.
        let end = match &found {
            Found::Window(window) if goes_on && at > 0 && state.runs.is_empty() => window.range.end,
            Found::Run(run) if run.range.end - at < AHEAD && state.runs.len() == 1 => run.range.end,
            _ => return Ok(found),
        };
        if end < state.len {
            let run = self.run(end, state.len)?;
            state.runs.push_back(run);
        }
        Ok(found)
    }

    fn run(&self, at: u64, len: u64) -> Result<Arc<Run>> {
        let range = at..(at + RUN).min(len);
        Run::begin(&self.source, &self.caller, &self.path, range).map(Arc::new)
    }

    /// Reads a large piece in parts at once.
    fn read_parts(&self, range: Range<u64>, buf: &mut [u8]) -> Result<usize> {
        let mut begin = range.start;
        let mut parts = Vec::new();
        while begin < range.end {
            let end = (begin + PART).min(range.end);
            parts.push(self.ask(begin..end)?);
            begin = end;
        }
        let mut done = 0;
        for part in parts {
            let bytes = part.wait()?;
            let to = buf.get_mut(done..done + bytes.len()).ok_or_else(lost)?;
            to.copy_from_slice(&bytes);
            done += bytes.len();
        }
        Ok(done)
    }
}

async fn fetch(
    caller: &Caller,
    path: &str,
    source: &Arc<dyn Source>,
    range: Range<u64>,
) -> Result<Bytes> {
    let length = range.end - range.start;
    let bytes = caller.repeat(path, |_| source.fetch(range.clone())).await?;
    if bytes.len() as u64 != length {
        return Err(Status::data_loss(format!(
            "{path}; {} bytes came instead of {length}: the file was changed while it was read",
            bytes.len()
        )));
    }
    Ok(bytes)
}

fn lost() -> Status {
    Status::internal("a window of a remote file vanished")
}

impl Window {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        let bytes = self.wait()?;
        let from = usize::try_from(at - self.range.start).unwrap_or(usize::MAX);
        Ok(copy(bytes.get(from..).unwrap_or_default(), buf))
    }

    fn wait(&self) -> Result<Bytes> {
        let mut bytes = self.bytes.lock();
        loop {
            if let Some(arrived) = &*bytes {
                return arrived.clone();
            }
            if self.arrived.wait_for(&mut bytes, LOOK).timed_out() {
                stop_point();
            }
        }
    }
}

impl ReadAt for RemoteFile {
    fn len(&self) -> Result<u64> {
        self.end(u64::MAX)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let end = self.end(at)?;
            if at >= end {
                break;
            }
            let rest = buf.get_mut(done..).unwrap_or_default();
            let wanted = (rest.len() as u64).min(end - at);
            let n = match self.find(at, wanted)? {
                Found::Run(run) => run.read(at, rest),
                Found::Window(window) => window.read(at, rest),
                Found::Large => self.read_parts(at..at + wanted, rest),
            };
            let mut state = self.state.lock();
            match n {
                Ok(n) => {
                    done += n;
                    state.next = at + n as u64;
                }
                Err(status) => {
                    // The next one who asks shall not get the old answer.
                    state.window = None;
                    state.runs.clear();
                    return Err(status);
                }
            }
        }
        Ok(done)
    }
}

/// Where the next bytes come from.
enum Found {
    Run(Arc<Run>),
    Window(Arc<Window>),
    Large,
}

/// A long answer that arrives while it is read.
struct Run {
    range: Range<u64>,
    arriving: Arc<Arriving>,
    task: tokio::task::JoinHandle<()>,
}

struct Arriving {
    state: Mutex<Arrived>,
    changed: Condvar,
    /// Tells that the reader has made room.
    room: Notify,
}

/// What has arrived and was not read.
struct Arrived {
    pieces: VecDeque<Bytes>,
    /// Where the first piece begins, and the last one ends.
    begin: u64,
    end: u64,
    failed: Option<Status>,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({:?})", self.range)
    }
}

/// Nobody reads it any more.
impl Drop for Run {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Run {
    fn begin(
        source: &Arc<dyn Source>,
        caller: &Caller,
        path: &str,
        range: Range<u64>,
    ) -> Result<Run> {
        let arriving = Arc::new(Arriving {
            state: Mutex::new(Arrived {
                pieces: VecDeque::new(),
                begin: range.start,
                end: range.start,
                failed: None,
            }),
            changed: Condvar::new(),
            room: Notify::new(),
        });
        let (source, caller, path) = (source.clone(), caller.clone(), path.to_owned());
        let (told, wanted) = (arriving.clone(), range.clone());
        let task = runtime()?.spawn(async move {
            if let Err(why) = told.fill(&source, &caller, &path, wanted.end).await {
                told.state.lock().failed = Some(why);
                told.changed.notify_all();
            }
        });
        Ok(Run {
            range,
            arriving,
            task,
        })
    }

    /// Whether a byte is still to be had from it.
    fn has(&self, at: u64) -> bool {
        at < self.range.end && at >= self.arriving.state.lock().begin
    }

    /// Waits for the byte at `at` and takes what has come from there on.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        let mut state = self.arriving.state.lock();
        while state.end <= at {
            if let Some(why) = &state.failed {
                return Err(why.clone());
            }
            if self.arriving.changed.wait_for(&mut state, LOOK).timed_out() {
                stop_point();
            }
        }
        let mut done = 0;
        while done < buf.len() {
            let from = at + done as u64;
            let Some(first) = state.pieces.front() else {
                break;
            };
            let (length, begin) = (first.len() as u64, state.begin);
            if from >= begin + length {
                state.pieces.pop_front();
                state.begin = begin + length;
                self.arriving.room.notify_one();
                continue;
            }
            // Another reader of the same file may have taken what was here.
            let skip = from.checked_sub(begin).ok_or_else(lost)?;
            let rest = first.get(usize::try_from(skip).unwrap_or(usize::MAX)..);
            done += copy(
                rest.unwrap_or_default(),
                buf.get_mut(done..).unwrap_or_default(),
            );
        }
        Ok(done)
    }
}

/// Copies as much as there is and fits; how much that is.
fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let n = from.len().min(to.len());
    if let (Some(to), Some(from)) = (to.get_mut(..n), from.get(..n)) {
        to.copy_from_slice(from);
    }
    n
}

impl Arriving {
    /// Takes in all bytes up to `end`, with a new answer from where one broke off.
    async fn fill(
        &self,
        source: &Arc<dyn Source>,
        caller: &Caller,
        path: &str,
        end: u64,
    ) -> Result<()> {
        let mut empty = 0;
        loop {
            let at = self.state.lock().end;
            if at >= end {
                return Ok(());
            }
            let mut pieces = caller.repeat(path, |_| source.stream(at..end)).await?;
            let broken = loop {
                match tokio::time::timeout(SILENCE, pieces.next()).await {
                    Ok(Some(Ok(piece))) => self.put(piece, end).await,
                    Ok(Some(Err(Failure {
                        status,
                        is_transient: false,
                    }))) => return Err(status),
                    Ok(Some(Err(failure))) => break failure.status,
                    Ok(None) => break Status::data_loss(format!("{path}; its bytes ended early")),
                    Err(_) => break Status::unavailable(format!("{path}; no more bytes came")),
                }
            };
            empty = if self.state.lock().end > at {
                0
            } else {
                empty + 1
            };
            if empty >= EMPTY_ANSWERS {
                return Err(broken);
            }
        }
    }

    /// Keeps a piece, once there is room for it.
    async fn put(&self, piece: Bytes, end: u64) {
        loop {
            {
                let mut state = self.state.lock();
                if state.end - state.begin < AHEAD {
                    // No answer has more than it was asked for; what one sends behind is not the file's.
                    let room = usize::try_from(end - state.end).unwrap_or(usize::MAX);
                    let piece = piece.slice(..piece.len().min(room));
                    state.end += piece.len() as u64;
                    state.pieces.push_back(piece);
                    self.changed.notify_all();
                    return;
                }
            }
            self.room.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Patience;
    use crate::call::Failure;

    /// A file in memory that notes what was asked of it.
    #[derive(Debug, Default)]
    struct Noted {
        data: Mutex<Vec<u8>>,
        asked: Mutex<Vec<Range<u64>>>,
        failures: Mutex<u32>,
    }

    impl Source for Noted {
        fn fetch(&self, range: Range<u64>) -> Work<Bytes> {
            self.asked.lock().push(range.clone());
            let mut failures = self.failures.lock();
            if *failures > 0 {
                *failures -= 1;
                let failure = Failure {
                    status: Status::unavailable("x; away"),
                    is_transient: true,
                };
                return Box::pin(async move { Err(failure) });
            }
            let range = range.start as usize..range.end as usize;
            let bytes = Bytes::copy_from_slice(&self.data.lock()[range]);
            Box::pin(async move { Ok(bytes) })
        }

        fn stream(&self, range: Range<u64>) -> Work<Pieces> {
            self.asked.lock().push(range.clone());
            // Every answer breaks off, the first time at once.
            let is_first = self.asked.lock().len() == 2;
            let (from, to) = (range.start as usize, range.end as usize);
            let to = if is_first {
                from
            } else {
                to.min(from + (30 << 20))
            };
            let bytes = Bytes::copy_from_slice(&self.data.lock()[from..to]);
            let pieces = (0..bytes.len()).step_by(1 << 20);
            let pieces: Vec<Outcome<Bytes>> = pieces
                .map(|at| Ok(bytes.slice(at..bytes.len().min(at + (1 << 20)))))
                .chain([Err(Failure {
                    status: Status::unavailable("x; broken"),
                    is_transient: true,
                })])
                .collect();
            Box::pin(async move { Ok(Box::pin(futures_util::stream::iter(pieces)) as Pieces) })
        }

        fn length(&self) -> Work<u64> {
            let len = self.data.lock().len() as u64;
            Box::pin(async move { Ok(len) })
        }
    }

    fn file(len: usize) -> (Arc<Noted>, RemoteFile) {
        let data: Vec<u8> = (0..len).map(|i| ((i * 31) >> 3) as u8).collect();
        let source = Arc::new(Noted {
            data: Mutex::new(data),
            ..Noted::default()
        });
        let caller = Caller::new(Patience::default());
        let file = RemoteFile::new(source.clone(), caller, "x", len as u64);
        (source, file)
    }

    fn read_on(file: &RemoteFile, step: usize) -> Vec<u8> {
        let (mut all, mut buf) = (Vec::new(), vec![0; step]);
        loop {
            let n = file.read_at(all.len() as u64, &mut buf).unwrap();
            all.extend_from_slice(&buf[..n]);
            if n < step {
                return all;
            }
        }
    }

    #[test]
    fn a_file_read_on_comes_whole_by_few_answers() {
        let (source, file) = file(70 << 20);
        assert!(read_on(&file, 256 << 10) == *source.data.lock());
        let mib = |n: u64| n << 20;
        let asked = source.asked.lock();
        let ends: Vec<u64> = asked.iter().map(|range| range.start).collect();
        assert_eq!(ends, [0, mib(1), mib(1), mib(31), mib(61)]);
    }

    #[test]
    fn a_small_file_is_one_request() {
        let (source, file) = file(1000);
        assert!(read_on(&file, 100) == *source.data.lock());
        let asked = source.asked.lock();
        assert_eq!((asked.len(), &asked[0]), (1, &(0..1000)));
    }

    #[test]
    fn scattered_reads_ask_for_no_more_than_a_window() {
        let (source, file) = file(50 << 20);
        let mut buf = [0; 100];
        for at in [40 << 20, 10 << 20, 30 << 20] {
            assert_eq!(file.read_at(at, &mut buf).unwrap(), 100);
            assert_eq!(buf[..], source.data.lock()[at as usize..][..100]);
        }
        assert!(
            source
                .asked
                .lock()
                .iter()
                .all(|r| r.end - r.start <= WINDOW)
        );
    }

    #[test]
    fn large_pieces_come_in_parts() {
        let (source, file) = file(50 << 20);
        let mut buf = vec![0; 20 << 20];
        assert_eq!(file.read_at(7, &mut buf).unwrap(), 20 << 20);
        assert!(buf == source.data.lock()[7..][..20 << 20]);
        assert_eq!(source.asked.lock().len(), 3);
        let end = file.read_at(45 << 20, &mut buf).unwrap();
        assert!(buf[..end] == source.data.lock()[45 << 20..]);
    }

    #[test]
    fn a_file_that_grows_is_read_on() {
        let (source, file) = file(1000);
        assert_eq!(read_on(&file, 300).len(), 1000);
        source.data.lock().extend_from_slice(&[7; 500]);
        file.state.lock().asked = Instant::now() - FRESH;
        let mut buf = [0; 600];
        assert_eq!(file.read_at(1000, &mut buf).unwrap(), 500);
        assert_eq!(buf[..500], [7; 500]);
    }

    #[test]
    fn a_failed_window_is_asked_for_again() {
        let (source, file) = file(1000);
        *source.failures.lock() = 2;
        assert!(read_on(&file, 300) == *source.data.lock());
        assert_eq!(source.asked.lock().len(), 3);
    }
}
