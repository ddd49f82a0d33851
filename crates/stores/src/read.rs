//! Reading a remote file: in windows, several of which are asked for ahead of one who reads from front to back.
//! A large piece from elsewhere is read in parts at once, past the windows. Nothing is kept between files.

use crate::call::{Caller, Outcome, runtime, wait};
use bytes::Bytes;
use downpour_formats::ReadAt;
use downpour_graph::{Result, Status};
use downpour_tensor::account::stop_point;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first window of a reader: most files that are read in whole are smaller.
const FIRST_WINDOW: u64 = 1 << 20;
/// What windows grow to, by doubling, while somebody reads on.
const LARGEST_WINDOW: u64 = 8 << 20;
/// Bytes asked for ahead of a reader, once it has shown that it reads on.
const AHEAD: u64 = 24 << 20;
/// From so many bytes on a piece that no window has is read by itself,
const LARGE: u64 = 4 << 20;
/// in parts of this size at once.
const PART: u64 = 8 << 20;
/// For how long a file that was seen to end is believed to end there.
const FRESH: Duration = Duration::from_secs(1);
/// How often a waiting thread looks whether its step still wants the bytes.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) type Work<T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;

/// A remote file as its client shows it.
pub(crate) trait Source: Send + Sync + fmt::Debug {
    /// The bytes of a range that lies within the file.
    fn fetch(&self, range: Range<u64>) -> Work<Bytes>;

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
    /// Neighbours, in order.
    windows: VecDeque<Arc<Window>>,
    /// Size of the last one.
    size: u64,
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
                windows: VecDeque::new(),
                size: 0,
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

    /// The window that has the byte at `at`, which is in the file; those behind it are asked for.
    fn window(&self, at: u64, wanted: u64) -> Result<Arc<Window>> {
        let state = &mut *self.state.lock();
        let goes_on = at == state.next;
        let found = state.windows.iter().position(|w| w.range.contains(&at));
        let window = match found {
            Some(position) => {
                // What lies before it was read.
                if goes_on {
                    state.windows.drain(..position);
                }
                let found = state.windows.iter().find(|w| w.range.contains(&at));
                found.cloned().ok_or_else(lost)?
            }
            None => {
                state.windows.clear();
                state.size = match goes_on && state.size > 0 {
                    true => (state.size * 2).min(LARGEST_WINDOW),
                    false => FIRST_WINDOW,
                };
                let size = state.size.max(wanted).min(LARGEST_WINDOW);
                let window = self.ask(at..(at + size).min(state.len))?;
                state.windows.push_back(window.clone());
                window
            }
        };
        // One who has read a window to its end, or is in the second one, reads on.
        while goes_on && at > 0 {
            let last = state.windows.back().map_or(at, |w| w.range.end);
            if last >= state.len || last - at >= AHEAD {
                break;
            }
            state.size = (state.size * 2).min(LARGEST_WINDOW);
            let ahead = self.ask(last..(last + state.size).min(state.len))?;
            state.windows.push_back(ahead);
        }
        Ok(window)
    }

    fn is_in_window(&self, at: u64) -> bool {
        let state = self.state.lock();
        state.windows.iter().any(|w| w.range.contains(&at))
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
            if wanted >= LARGE && !self.is_in_window(at) {
                done += self.read_parts(at..at + wanted, rest)?;
                self.state.lock().next = offset + done as u64;
                continue;
            }
            let window = self.window(at, wanted)?;
            let bytes = match window.wait() {
                Ok(bytes) => bytes,
                Err(status) => {
                    // The next one who asks shall not get the old answer.
                    self.state.lock().windows.clear();
                    return Err(status);
                }
            };
            let from = usize::try_from(at - window.range.start).unwrap_or(usize::MAX);
            let from = bytes.get(from..).unwrap_or_default();
            let n = from.len().min(rest.len());
            if let (Some(to), Some(from)) = (rest.get_mut(..n), from.get(..n)) {
                to.copy_from_slice(from);
            }
            done += n;
            self.state.lock().next = at + n as u64;
        }
        Ok(done)
    }
}

/// Reads a whole range past all windows, for one who has no file open.
#[allow(dead_code)]
pub(crate) fn read_range(
    caller: &Caller,
    path: &str,
    source: Arc<dyn Source>,
    range: Range<u64>,
) -> Result<Bytes> {
    let (caller, path) = (caller.clone(), path.to_owned());
    wait(async move { fetch(&caller, &path, &source, range).await })
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

        fn length(&self) -> Work<u64> {
            let len = self.data.lock().len() as u64;
            Box::pin(async move { Ok(len) })
        }
    }

    fn file(len: usize) -> (Arc<Noted>, RemoteFile) {
        let data: Vec<u8> = (0..len).map(|i| (i * 31 >> 3) as u8).collect();
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
    fn a_file_read_on_comes_whole_each_byte_once() {
        let (source, file) = file(70 << 20);
        assert!(read_on(&file, 256 << 10) == *source.data.lock());
        let mut asked = source.asked.lock();
        // Several are under way at once.
        asked.sort_by_key(|range| range.start);
        let mut next = 0;
        for range in asked.iter() {
            assert_eq!(range.start, next);
            next = range.end;
        }
        assert_eq!(next, 70 << 20);
        assert!(asked.len() < 16, "{}", asked.len());
    }

    #[test]
    fn a_small_file_is_one_request() {
        let (source, file) = file(1000);
        assert!(read_on(&file, 100) == *source.data.lock());
        assert_eq!(*source.asked.lock(), [0..1000]);
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
                .all(|r| r.end - r.start <= FIRST_WINDOW)
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
