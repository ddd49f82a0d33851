//! What a container prints, as one stream: a connection that breaks is made again, and goes on where the last one ended.
//! Lines carry the time at which they were printed; it is how the place is found, and it is taken off.

use super::api::{Api, Body};
use std::io::{self, BufRead as _, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two attempts.
const RETRY: Duration = Duration::from_millis(300);
/// A longer line comes in pieces.
const MAX_LINE: u64 = 1 << 20;

/// The log of one start of a container.
pub(crate) struct Logs {
    api: Arc<Api>,
    path: String,
    /// The container has ended: a stream that ends has all of it.
    has_ended: Arc<AtomicBool>,
    /// Nobody wants more.
    is_over: Arc<AtomicBool>,
    body: Option<BufReader<Body>>,
    place: Place,
    ready: io::Cursor<Vec<u8>>,
    is_mid_line: bool,
}

/// Up to where the log was read.
#[derive(Debug, Default)]
struct Place {
    /// Of the last line.
    time: String,
    /// So many lines were read that were printed at that time.
    count: u32,
    /// So many of them the present connection has told again.
    again: u32,
}

impl Place {
    /// The text of a line, without its time; none if it was read before.
    fn pass<'a>(&mut self, line: &'a [u8]) -> Option<&'a [u8]> {
        let cut = line.iter().position(|byte| *byte == b' ');
        let Some((time, text)) = cut.map(|at| (&line[..at], &line[at + 1..])) else {
            return Some(line);
        };
        let time = String::from_utf8_lossy(time);
        match time.as_ref().cmp(self.time.as_str()) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => {
                self.again += 1;
                let is_new = self.again > self.count;
                self.count = self.count.max(self.again);
                is_new.then_some(text)
            }
            std::cmp::Ordering::Greater => {
                self.time = time.into_owned();
                (self.count, self.again) = (1, 1);
                Some(text)
            }
        }
    }
}

impl Logs {
    pub(crate) fn new(
        api: Arc<Api>,
        path: String,
        has_ended: Arc<AtomicBool>,
        is_over: Arc<AtomicBool>,
    ) -> Logs {
        Logs {
            api,
            path,
            has_ended,
            is_over,
            body: None,
            place: Place::default(),
            ready: io::Cursor::default(),
            is_mid_line: false,
        }
    }

    /// Connects; false if there is nothing more to have.
    fn connect(&mut self) -> bool {
        let mut path = format!("{}&follow=true", self.path);
        if !self.place.time.is_empty() {
            let since: String = self.place.time.replace('+', "%2B");
            path += &format!("&sinceTime={since}");
        }
        self.place.again = 0;
        let is_over = self.is_over.clone();
        let wanted = Box::new(move || is_over.load(Ordering::Acquire));
        match self.api.stream(&path, wanted) {
            Ok(body) => {
                self.body = Some(BufReader::new(body));
                true
            }
            Err(e) if e.is(404) => false,
            Err(_) => {
                std::thread::sleep(RETRY);
                !self.is_over.load(Ordering::Acquire)
            }
        }
    }
}

impl Read for Logs {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.ready.read(into)?;
            if read > 0 {
                return Ok(read);
            }
            let Some(body) = &mut self.body else {
                match self.connect() {
                    true => continue,
                    false => return Ok(0),
                }
            };
            let mut line = Vec::new();
            let got = body.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
            if self.is_over.load(Ordering::Acquire) {
                return Ok(0);
            }
            match got {
                Ok(1..) => {
                    let text = match self.is_mid_line {
                        true => Some(line.as_slice()),
                        false => self.place.pass(&line),
                    };
                    self.is_mid_line = line.last() != Some(&b'\n');
                    self.ready = io::Cursor::new(text.unwrap_or_default().to_vec());
                }
                Ok(0) => {
                    (self.body, self.is_mid_line) = (None, false);
                    let had_ended = self.has_ended.load(Ordering::Acquire);
                    std::thread::sleep(RETRY);
                    if had_ended || self.has_ended.load(Ordering::Acquire) {
                        return Ok(0);
                    }
                }
                Err(_) => {
                    (self.body, self.is_mid_line) = (None, false);
                    std::thread::sleep(RETRY);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_made_again_tells_nothing_twice() {
        let mut place = Place::default();
        let pass = |place: &mut Place, lines: &[&str]| {
            let lines = lines.iter().filter_map(|line| place.pass(line.as_bytes()));
            lines
                .map(|l| String::from_utf8_lossy(l).into_owned())
                .collect::<Vec<_>>()
        };
        let first = [
            "2026-01-01T00:00:01.000000001Z a",
            "2026-01-01T00:00:02.000000000Z b",
            "2026-01-01T00:00:02.000000000Z c",
        ];
        assert_eq!(pass(&mut place, &first), ["a", "b", "c"]);
        place.again = 0;
        let second = [
            "2026-01-01T00:00:02.000000000Z b",
            "2026-01-01T00:00:02.000000000Z c",
            "2026-01-01T00:00:02.000000000Z d",
            "2026-01-01T00:00:03.000000000Z ",
            "odd",
        ];
        assert_eq!(pass(&mut place, &second), ["d", "", "odd"]);
    }
}
